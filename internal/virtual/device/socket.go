// SPDX-License-Identifier: Apache-2.0

// Package vdevice contains the common parts of the virtual devices: the socket in place of a device file,
// the packets that carry ioctls, and the interface that reports the device's ground truth.
package vdevice

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Listen opens a SOCK_SEQPACKET socket; flags are for socket(2). It replaces a socket file that
// nobody serves. Packets carry the sender's credentials.
func Listen(path string, flags int) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		return -1, fmt.Errorf("create socket: %w", err)
	}
	err = bind(fd, path)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	if err == nil {
		err = unix.Listen(fd, 256)
	}
	if err == nil {
		err = os.Chmod(path, 0o666) // like a device file; the folder restricts access
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("listen on %s: %w", path, err)
	}
	return fd, nil
}

func bind(fd int, path string) error {
	address := &unix.SockaddrUnix{Name: path}
	err := unix.Bind(fd, address)
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return errors.New("the path exists and is not a socket; choose another one")
	}
	if !errors.Is(unix.Connect(fd, address), unix.ECONNREFUSED) {
		return errors.New("another virtual GPU serves this socket; stop it or choose another path")
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return unix.Bind(fd, address)
}

// Sender returns the process that sent a packet, from its control message; 0 if it is missing.
func Sender(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for i := range messages {
		if c, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			return int(c.Pid)
		}
	}
	return 0
}

// Format describes the packets of a device. One packet is one ioctl; a descriptor for the reply
// comes with it. The header starts with the magic number, the ioctl's number and the lengths of
// argument and parameters.
type Format struct {
	Magic             uint32
	Header            int
	MaxArg, MaxParams int
}

// MaxRequest is the length of the longest packet.
func (f Format) MaxRequest() int { return f.Header + f.MaxArg + f.MaxParams }

// ReplyHeader is the length of a reply's header: result and two lengths.
const ReplyHeader = 16

// ErrPacket marks a malformed packet. It ends the connection.
var ErrPacket = errors.New("malformed packet")

// Packet is one decoded request.
type Packet struct {
	Request uint32
	Extra   []byte // the device's own part of the header
	Arg     []byte // the argument
	Params  []byte // the memory that a pointer in the argument refers to
}

// Decode reads a request. The fields of the result refer to b.
func (f Format) Decode(b []byte) (Packet, error) {
	le := binary.LittleEndian
	if len(b) < f.Header || le.Uint32(b) != f.Magic {
		return Packet{}, fmt.Errorf("read header: %w", ErrPacket)
	}
	arg, params := le.Uint32(b[8:]), le.Uint32(b[12:])
	if arg > uint32(f.MaxArg) || params > uint32(f.MaxParams) || len(b) != f.Header+int(arg+params) {
		return Packet{}, fmt.Errorf("read %d+%d bytes in a packet of %d: %w", arg, params, len(b), ErrPacket)
	}
	body := b[f.Header:]
	return Packet{Request: le.Uint32(b[4:]), Extra: b[16:f.Header], Arg: body[:arg:arg], Params: body[arg:]}, nil
}

// EncodeReply returns the reply to a request: its result and its memory as it is now.
func EncodeReply(result int, arg, params []byte) []byte {
	b := make([]byte, ReplyHeader, ReplyHeader+len(arg)+len(params))
	binary.LittleEndian.PutUint32(b, uint32(int32(result)))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(arg)))
	binary.LittleEndian.PutUint32(b[8:], uint32(len(params)))
	return append(append(b, arg...), params...)
}
