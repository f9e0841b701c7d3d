// SPDX-License-Identifier: Apache-2.0

package seqpacket

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

type message struct {
	Op      string
	Session uint64
}

func TestPackets(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := Send(pair[0], message{Op: "detach", Session: 7}, []int{fd}); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	var m message
	fds, err := Receive(pair[1], &m)
	if err != nil || m.Session != 7 || len(fds) != 1 {
		t.Fatalf("%+v %v %v", m, fds, err)
	}
	CloseAll(fds)
	_, _ = unix.Write(pair[0], []byte("no json"))
	if _, err := Receive(pair[1], &m); err == nil {
		t.Error("rubbish was accepted")
	}
	_ = unix.Close(pair[0])
	if _, err := Receive(pair[1], &m); !errors.Is(err, ErrClosed) {
		t.Errorf("end: %v", err)
	}
}
