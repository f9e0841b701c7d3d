// SPDX-License-Identifier: Apache-2.0

// Package guardian is the tiny process that answers for processes without our
// shim. The daemon controls those through duplicates of their files; should it
// die or fall silent, nobody inside them would set them free. The guardian
// holds duplicates too, knows what has to be restored, and does it. On AMD's driver
// only a process's debugger can do that, so there it is the debugger; see trace.go.
package guardian

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia"
)

// message is one packet from the daemon, as JSON.
type message struct {
	Op  string `json:"op"`  // start, attach, detach; those of a tracer
	Seq uint64 `json:"seq"` // comes back in the reply

	// start: which driver
	Virtual    bool   `json:"virtual,omitempty"`
	VGPUSocket string `json:"vgpu_socket,omitempty"`
	KFDSocket  string `json:"kfd_socket,omitempty"` // trace

	// attach: with descriptors [page, pidfd, one file for each restore]
	Session  uint64             `json:"session,omitempty"`
	PID      int                `json:"pid,omitempty"`
	Restores []nvidia.Restore   `json:"restores,omitempty"`
	Files    []nvidia.Candidate `json:"files,omitempty"`

	// detach: the daemon has set the process free. Otherwise it is done here.
	Restored bool `json:"restored,omitempty"`

	order
}

const (
	maxMessage = 128 << 10
	maxFDs     = 66
)

// reply answers every message, in order; one that came too late is told by its number.
type reply struct {
	Seq   uint64 `json:"seq"`
	Error string `json:"error,omitempty"`
	traced
}

func send(sock int, v any, fds []int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if len(b) > maxMessage || len(fds) > maxFDs {
		return fmt.Errorf("send message: %d bytes with %d descriptors is too much", len(b), len(fds))
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

var errEOF = errors.New("the other side is gone")

func receive(sock int, v any) ([]int, error) { return newInbox(sock).receive(v) }

// inbox is the room for what comes from a socket, for whoever receives much.
type inbox struct {
	sock     int
	buf, oob []byte
}

func newInbox(sock int) *inbox {
	return &inbox{sock, make([]byte, maxMessage), make([]byte, unix.CmsgSpace(maxFDs*4))}
}

func (i *inbox) receive(v any) ([]int, error) {
	sock, buf, oob := i.sock, i.buf, i.oob
	for {
		n, oobn, flags, _, err := unix.Recvmsg(sock, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("receive message: %w", err)
		}
		if n == 0 {
			return nil, errEOF
		}
		fds := rights(oob[:oobn])
		if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			closeFDs(fds)
			return nil, errors.New("receive message: too long")
		}
		if err := json.Unmarshal(buf[:n], v); err != nil {
			closeFDs(fds)
			return nil, fmt.Errorf("decode message: %w", err)
		}
		return fds, nil
	}
}

func rights(oob []byte) []int {
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

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
