// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia"
	"xsched/internal/wire"
)

// What it does to processes is tested with a virtual GPU, in package daemon.

func open(t *testing.T) int {
	t.Helper()
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func count(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

func TestBadRequestsLeakNothing(t *testing.T) {
	g := &guardian{wards: map[uint64]*ward{}}
	before := count(t)
	for name, m := range map[string]message{
		"unknown request":    {Op: "dance"},
		"attach first":       {Op: "attach", Restores: []nvidia.Restore{{}}},
		"too few":            {Op: "attach", Restores: []nvidia.Restore{{}, {}, {}}},
		"page is not sealed": {Op: "attach", Restores: []nvidia.Restore{{}}},
	} {
		if name != "attach first" {
			g.driver = nvidia.NewVirtualDriver("/nowhere")
		}
		if err := g.do(m, []int{open(t), open(t), open(t)}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if n := count(t); n != before {
		t.Errorf("%d descriptors, were %d", n, before)
	}
}

// A process that has ended is let go at the next look.
func TestEndedProcess(t *testing.T) {
	g := &guardian{wards: map[uint64]*ward{}, driver: nvidia.NewVirtualDriver("/nowhere")}
	before := count(t)
	page, memfd, err := wire.NewPage(1)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Release()
	p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(p.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.do(message{Op: "attach", Session: 1, PID: p.Pid, Restores: []nvidia.Restore{{}}}, []int{memfd, pidfd, open(t)}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	g.look()
	if n := count(t); len(g.wards) != 0 || n != before {
		t.Errorf("%d wards, %d descriptors, were %d", len(g.wards), n, before)
	}
}

func TestPackets(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	fd := open(t)
	if err := send(pair[0], message{Op: "detach", Session: 7}, []int{fd}); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	var m message
	fds, err := receive(pair[1], &m)
	if err != nil || m.Session != 7 || len(fds) != 1 {
		t.Fatalf("%+v %v %v", m, fds, err)
	}
	closeFDs(fds)
	_, _ = unix.Write(pair[0], []byte("no json"))
	if _, err := receive(pair[1], &m); err == nil {
		t.Error("rubbish was accepted")
	}
	_ = unix.Close(pair[0])
	if _, err := receive(pair[1], &m); !errors.Is(err, errEOF) {
		t.Errorf("end: %v", err)
	}
}
