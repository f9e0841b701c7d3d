// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The transport: one ioctl is one SOCK_SEQPACKET packet with one descriptor attached,
// on which the one reply goes back.
const (
	magicIoctl = 0x4F494756 // "VGIO"
	magicDebug = 0x47444756 // "VGDG"

	requestHeader = 16
	replyHeader   = 16
	maxArg        = 64
	maxParams     = 4096
	maxRequest    = requestHeader + maxArg + maxParams
)

// ErrPacket says that a packet is not one of ours; it ends the connection.
var ErrPacket = errors.New("malformed packet")

// ioctlPacket is one decoded request.
type ioctlPacket struct {
	Request uint32
	Arg     []byte
	Params  []byte
}

// decodeIoctl reads a request. Arg and Params are parts of b.
func decodeIoctl(b []byte) (ioctlPacket, error) {
	if len(b) < requestHeader || binary.LittleEndian.Uint32(b) != magicIoctl {
		return ioctlPacket{}, fmt.Errorf("read header: %w", ErrPacket)
	}
	arg, params := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
	if arg > maxArg || params > maxParams || len(b) != requestHeader+int(arg+params) {
		return ioctlPacket{}, fmt.Errorf("read %d+%d bytes in a packet of %d: %w", arg, params, len(b), ErrPacket)
	}
	body := b[requestHeader:]
	return ioctlPacket{
		Request: binary.LittleEndian.Uint32(b[4:]),
		Arg:     body[:arg:arg],
		Params:  body[arg:],
	}, nil
}

// encodeReply is the answer to p: its arg and params as they are now.
func encodeReply(p ioctlPacket, errno int) []byte {
	b := make([]byte, replyHeader, replyHeader+len(p.Arg)+len(p.Params))
	binary.LittleEndian.PutUint32(b, uint32(errno))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(p.Arg)))
	binary.LittleEndian.PutUint32(b[8:], uint32(len(p.Params)))
	return append(append(b, p.Arg...), p.Params...)
}
