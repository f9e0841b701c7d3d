// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/registry"
	"xsched/internal/wire"
)

// Package daemon tests the effect on processes with a virtual GPU.

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
	g := &guardian{wards: map[uint64]*ward{}, drivers: registry.All()}
	before := count(t)
	for name, m := range map[string]message{
		"unknown request":    {Op: "dance"},
		"attach first":       {Op: "attach", Driver: "nvidia", State: []byte("{}")},
		"unknown driver":     {Op: "attach", Driver: "none", State: []byte("{}")},
		"page is not sealed": {Op: "attach", Driver: "nvidia", State: []byte("{}")},
	} {
		g.place = &driver.Place{Virtual: true, Socket: "/nowhere"}
		if name == "attach first" {
			g.place = nil
		}
		if err := g.do(m, []int{open(t), open(t), open(t)}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if n := count(t); n != before {
		t.Errorf("%d descriptors, were %d", n, before)
	}
}

// The next look drops a process that has ended.
func TestEndedProcess(t *testing.T) {
	g := &guardian{wards: map[uint64]*ward{}, drivers: registry.All(), place: &driver.Place{Virtual: true, Socket: "/nowhere"}}
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
	if err := g.do(message{Op: "attach", Session: 1, Driver: "nvidia", PID: p.Pid, State: []byte(`{"restores": [{}]}`)}, []int{memfd, pidfd, open(t)}); err != nil {
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
