// SPDX-License-Identifier: Apache-2.0

// Package quarantine keeps the descriptors of strangers out of the daemon.
//
// A stranger chooses what a descriptor is. Closing a file whose server does not answer blocks for
// ever, and so does the exit of every process that has it open, even after SIGKILL. Not receiving the
// descriptor does not help: whoever discards the packet, or closes the socket that it is queued in,
// releases the file. A socket with SO_LINGER blocks in the same places.
//
// Therefore a process of its own keeps a duplicate of every connection with strangers, so that the
// daemon's close is never the last one. That process alone receives descriptors. It passes on those
// that the daemon asked for, and closes the others, with one thread per account. It owns nothing else:
// blocked for ever, it harms nobody.
package quarantine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Want is the kind of descriptor that the daemon accepts. Closing one can't wait for a stranger.
type Want struct {
	Device uint64 `json:"device,omitempty"` // number of a character device
	Peer   string `json:"peer,omitempty"`   // packet socket connected to this path
}

// Check returns why a descriptor is not what is wanted. It does not ask the server of a file.
func (w Want) Check(fd int) error {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return fmt.Errorf("stat descriptor: %w", err)
	}
	if w.Peer == "" {
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Mkdev(st.Rdev_major, st.Rdev_minor) != w.Device {
			return fmt.Errorf("not the device %d:%d", unix.Major(w.Device), unix.Minor(w.Device))
		}
		return nil
	}
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || typ != unix.SOCK_SEQPACKET {
		return fmt.Errorf("not a packet socket")
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return fmt.Errorf("not a connected socket: %w", err)
	}
	if un, ok := peer.(*unix.SockaddrUnix); !ok || un.Name != w.Peer {
		return fmt.Errorf("connected to another peer than %s", w.Peer)
	}
	return nil
}

// Requests to the process, by their Op.
const (
	opKeep   = "keep"   // keep a connection
	opListen = "listen" // keep a listener; its unaccepted connections may carry descriptors, too
	opTake   = "take"   // receive the next packet of a connection
	opCopy   = "copy"   // duplicate a descriptor of another process
	opClose  = "close"  // close a connection
	opPing   = "ping"   // answer
)

// request is a message to the process.
type request struct {
	Op      string `json:"op"`
	Seq     uint64 `json:"seq,omitempty"`
	ID      uint64 `json:"id,omitempty"` // of a connection
	Account string `json:"account,omitempty"`
	FD      int    `json:"fd,omitempty"` // in the other process
	Most    int    `json:"most,omitempty"`
	Want    Want   `json:"want"`
}

// reply is a message of the process. Its descriptors are as wanted.
type reply struct {
	Seq    uint64     `json:"seq,omitempty"`
	Closed uint64     `json:"closed,omitempty"` // this connection is closed
	Error  string     `json:"error,omitempty"`
	Errno  unix.Errno `json:"errno,omitempty"`
}
