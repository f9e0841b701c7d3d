// SPDX-License-Identifier: Apache-2.0

// Package seqpacket passes packets and file descriptors over SOCK_SEQPACKET sockets, between
// daemon, shim and guardian and in the virtual GPUs.
package seqpacket

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Bounds of a JSON message.
const (
	MaxMessage = 128 << 10
	MaxFDs     = 66
)

// ErrClosed reports that the peer closed the connection.
var ErrClosed = errors.New("the peer closed the connection")

// ErrNoRoom reports that this process could not take the descriptors of a message, because it has too many.
// The message is decoded, and the connection can go on.
var ErrNoRoom = errors.New("no room for the descriptors of a message")

// Rights returns the descriptors of a control message, which the caller owns.
func Rights(oob []byte) []int {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var all []int
	for i := range msgs {
		if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			all = append(all, fds...)
		}
	}
	return all
}

func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Send sends v as JSON with fds, which the caller keeps.
func Send(sock int, v any, fds []int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if len(b) > MaxMessage || len(fds) > MaxFDs {
		return fmt.Errorf("send message: %d bytes with %d descriptors exceed the limit", len(b), len(fds))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(sock, b, oob, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("send message: %w", err)
		}
		return nil
	}
}

// Inbox receives JSON messages into reused buffers.
type Inbox struct {
	sock     int
	buf, oob []byte
}

// NewInbox receives from sock, which the caller keeps.
func NewInbox(sock int) *Inbox {
	return &Inbox{sock, make([]byte, MaxMessage), make([]byte, unix.CmsgSpace(MaxFDs*4))}
}

// Receive waits for a message and decodes it into v. The caller owns the descriptors.
func (i *Inbox) Receive(v any) ([]int, error) {
	for {
		n, oobn, flags, _, err := unix.Recvmsg(i.sock, i.buf, i.oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("receive message: %w", err)
		}
		if n == 0 {
			return nil, ErrClosed
		}
		fds := Rights(i.oob[:oobn])
		if flags&unix.MSG_TRUNC != 0 {
			CloseAll(fds)
			return nil, errors.New("receive message: too long")
		}
		if err := json.Unmarshal(i.buf[:n], v); err != nil {
			CloseAll(fds)
			return nil, fmt.Errorf("decode message: %w", err)
		}
		if flags&unix.MSG_CTRUNC != 0 {
			CloseAll(fds)
			return nil, ErrNoRoom
		}
		return fds, nil
	}
}

// Receive is Inbox.Receive for an occasional message.
func Receive(sock int, v any) ([]int, error) { return NewInbox(sock).Receive(v) }
