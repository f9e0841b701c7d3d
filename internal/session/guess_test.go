// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"testing"
	"time"

	"xsched/internal/loop"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// The estimate made while a queue could run stays in force while it is suspended, until the next
// probe.
func TestGuessIsKept(t *testing.T) {
	h := startAMD(t)
	c := &shim{Client: h.Client(t, 0, wire.LevelAuto)}
	_ = c.Conn.SetReadDeadline(time.Time{})
	go c.obey()
	c.announce(t, computeQueue(0))
	var s loop.UnhookedClient
	sessiontest.Await(t, "a bare session", func() bool {
		all, err := h.Unhooked(t.Context())
		if err != nil || len(all) != 1 {
			return false
		}
		s = all[0]
		return true
	})
	busy := func() bool {
		v, err := h.Clients(t.Context())
		if err != nil || len(v) != 1 || len(v[0].Queues) != 1 {
			t.Fatalf("%+v %v", v, err)
		}
		return v[0].Queues[0].Busy
	}
	look := func(worked bool) {
		if err := h.Observe(s.User, s.ID, worked); err != nil {
			t.Fatal(err)
		}
	}
	hold := func(on bool) {
		if err := h.SetHeld(t.Context(), s.PID, on); err != nil {
			t.Fatal(err)
		}
		sessiontest.Await(t, "obeyed", func() bool { return c.isPaused() == on })
	}
	time.Sleep(50 * time.Millisecond) // a probing turn in which it can run, and does not
	hold(true)
	if busy() {
		t.Error("an idle program counts as busy because it was stopped")
	}
	sessiontest.Await(t, "shall show whether it has work", func() bool { look(false); return busy() })
	hold(false)
	sessiontest.Await(t, "showed that it has none", func() bool { look(false); return !busy() })
	hold(true)
	if busy() {
		t.Error("a turn in vain was for nothing")
	}
	look(true)
	if !busy() {
		t.Error("a program that works while it is stopped is taken for idle")
	}
	hold(false)
	hold(true)
	look(false)
	if !busy() {
		t.Error("a program that worked just now is taken for idle")
	}
}
