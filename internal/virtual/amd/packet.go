// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The transport: one ioctl is one SOCK_SEQPACKET packet. A descriptor on which the one
// reply goes back comes with it, and behind it the file that the request names, if it
// names one. shim/virtual/vkfd.h is the other side.
const (
	magic         = 0x4F494B56 // "VKIO"
	requestHeader = 32
	replyHeader   = 16
	maxArg        = 512
	maxParams     = 65536
	maxRequest    = requestHeader + maxArg + maxParams
	flagFault     = 1 // the embedded pointer leads nowhere
)

// ErrPacket says that a packet is not one of ours; it ends the connection.
var ErrPacket = errors.New("malformed packet")

type packet struct {
	request uint32
	tid     int
	fault   bool
	arg     []byte
	params  []byte
}

// decode reads a request; arg and params are parts of b.
func decode(b []byte) (packet, error) {
	if len(b) < requestHeader || binary.LittleEndian.Uint32(b) != magic {
		return packet{}, fmt.Errorf("read header: %w", ErrPacket)
	}
	arg, params := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
	if arg > maxArg || params > maxParams || len(b) != requestHeader+int(arg+params) {
		return packet{}, fmt.Errorf("read %d+%d bytes in a packet of %d: %w", arg, params, len(b), ErrPacket)
	}
	return packet{
		request: binary.LittleEndian.Uint32(b[4:]), tid: int(int32(binary.LittleEndian.Uint32(b[16:]))),
		fault: binary.LittleEndian.Uint32(b[20:])&flagFault != 0,
		arg:   b[requestHeader : requestHeader+arg], params: b[requestHeader+arg:],
	}, nil
}

func encodeReply(result int, arg, params []byte) []byte {
	b := make([]byte, replyHeader, replyHeader+len(arg)+len(params))
	binary.LittleEndian.PutUint32(b, uint32(int32(result)))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(arg)))
	binary.LittleEndian.PutUint32(b[8:], uint32(len(params)))
	return append(append(b, arg...), params...)
}
