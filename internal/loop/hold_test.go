// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// TestHeldGroup checks that a group's hold and a suspension by hand are apart, and that a hold is for the
// granted group and priority only.
func TestHeldGroup(t *testing.T) {
	low := model.Priority(-10)
	terms := loop.Terms{Grant: loop.Grant{Ceiling: &low, Group: "ml/train"}}
	h := ruled(t, &terms)
	c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.Queue(0)
	who := h.Only(t)
	hold := func(groups loop.HeldGroups) {
		t.Helper()
		if err := h.HoldGroups(t.Context(), groups); err != nil {
			t.Fatal(err)
		}
	}
	hand := func(held bool) {
		t.Helper()
		if err := h.SetHeld(t.Context(), who.PID, held); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, group, byHand bool) {
		t.Helper()
		got := h.Only(t)
		if got.GroupHeld != group || got.Held != byHand || (got.Queues[0].Want.Suspend != 0) != (group || byHand) {
			t.Errorf("%s: group %v, by hand %v, queue %+v", what, got.GroupHeld, got.Held, got.Queues[0].Want)
		}
	}
	all := model.PriorityMax
	want("at the start", false, false)
	hold(loop.HeldGroups{"ml/train": all})
	want("held", true, false)
	hand(true)
	hold(nil)
	want("the end of the hold leaves what was suspended by hand", false, true)
	hold(loop.HeldGroups{"ml/train": low})
	hand(false)
	want("a resume by hand leaves the hold", true, false)
	hold(loop.HeldGroups{"web/train": all, "ml/other": all, "train": all, "": all})
	want("other groups", false, false)
	hold(loop.HeldGroups{"ml/train": low - 1})
	want("a hold for lower priorities", false, false)
	hold(loop.HeldGroups{"ml/train": low})
	if err := h.SetAllTerms(t.Context(), map[model.SessionID]loop.Terms{who.ID: {}}); err != nil {
		t.Fatal(err)
	}
	want("without the grant", false, false)
	if err := h.SetAllTerms(t.Context(), map[model.SessionID]loop.Terms{who.ID: terms}); err != nil {
		t.Fatal(err)
	}
	want("with it again", true, false)
}

// TestHeldGroupJoins checks that a program which joins while its group is held is held too.
func TestHeldGroupJoins(t *testing.T) {
	terms := loop.Terms{Grant: loop.Grant{Group: "ml/train"}}
	h := ruled(t, &terms)
	if err := h.HoldGroups(t.Context(), loop.HeldGroups{"ml/train": model.PriorityDefault}); err != nil {
		t.Fatal(err)
	}
	c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.Queue(0)
	if got := h.Only(t); !got.GroupHeld || got.Queues[0].Want.Suspend == 0 {
		t.Errorf("%+v", got)
	}
	if err := h.HoldGroups(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := h.Only(t); got.GroupHeld || got.Queues[0].Want.Suspend != 0 {
		t.Errorf("%+v", got)
	}
}

// TestHeldClientsOfOneProcess checks a process with two clients: the end of a group's hold leaves what was
// suspended by hand, also for the client that joined later, and a client that leaves takes nothing along.
func TestHeldClientsOfOneProcess(t *testing.T) {
	low := model.Priority(-10)
	terms := loop.Terms{Grant: loop.Grant{Ceiling: &low, Group: "ml/train"}}
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		c.Session.Terms = func(loop.Identity) loop.Terms { return terms }
	})
	join := func() *sessiontest.Client {
		t.Helper()
		c, err := sessiontest.Dial(h.Path, wire.Hello{PID: uint32(os.Getpid())})
		if err != nil {
			t.Fatal(err)
		}
		c.Queue(0)
		return c
	}
	want := func(what string, clients int, group, byHand bool) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			all, err := h.Clients(t.Context())
			wrong := slices.ContainsFunc(all, func(v loop.ClientView) bool {
				return v.GroupHeld != group || v.Held != byHand || v.GroupPriority != low || len(v.Queues) != 1 || (v.Queues[0].Want.Suspend != 0) != (group || byHand)
			})
			if err == nil && len(all) == clients && !wrong {
				return
			}
			if err != nil || time.Since(began) > 10*time.Second {
				t.Fatalf("%s: %+v, %v", what, all, err)
			}
		}
	}
	first := join()
	pid := h.Only(t).PID
	if err := h.SetHeld(t.Context(), pid, true); err != nil {
		t.Fatal(err)
	}
	second := join()
	defer second.Close()
	want("a client that joins", 2, false, true)
	for _, groups := range []loop.HeldGroups{{"ml/train": low}, nil} {
		if err := h.HoldGroups(t.Context(), groups); err != nil {
			t.Fatal(err)
		}
		want("with and without a hold", 2, groups != nil, true)
	}
	first.Close()
	want("after the first has left", 1, false, true)
	if err := h.SetHeld(t.Context(), pid, false); err != nil {
		t.Fatal(err)
	}
	want("resumed", 1, false, false)
}

// TestCausesOfSuspension checks that a preemption has its own cause: the group's hold or a user. The trace
// says the same.
func TestCausesOfSuspension(t *testing.T) {
	trace := record.NewTrace()
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		c.Loop.Trace = trace
		c.Session.Terms = func(loop.Identity) loop.Terms { return loop.Terms{Grant: loop.Grant{Group: "ml/train"}} }
	})
	c := h.Client(t, 0, wire.LevelAuto)
	c.HandOver(t)
	c.Queue(0)
	c.Busy(0, true)
	sessiontest.Await(t, "level 3", func() bool {
		v := h.Only(t)
		return len(v.Queues) == 1 && v.Queues[0].Level == model.LevelInterrupt
	})
	suspend := func(by func(on bool) error) {
		t.Helper()
		for _, on := range []bool{true, false} {
			if err := by(on); err != nil {
				t.Fatal(err)
			}
			sessiontest.Await(t, "suspended or resumed", func() bool { return (h.Hardware(0).Now().Suspend != 0) == on })
		}
	}
	group := func(on bool) error {
		if on {
			return h.HoldGroups(t.Context(), loop.HeldGroups{"ml/train": model.PriorityMax})
		}
		return h.HoldGroups(t.Context(), nil)
	}
	hand := func(on bool) error { return h.SetHeld(t.Context(), os.Getpid(), on) }
	suspend(group)
	suspend(hand)
	suspend(group)
	if got := h.Only(t).Queues[0].StoppedBy; got[loop.ByGroup] != 2 || got[loop.ByHand] != 1 || len(got) != 2 {
		t.Errorf("causes %v", got)
	}
	var by []int
	trace.Take(func(tr *engine.Transition) {
		if tr.To == engine.ActivityStopped {
			by = append(by, tr.By)
		}
	})
	if !slices.Equal(by, []int{engine.ByGroup, engine.ByHand, engine.ByGroup}) {
		t.Errorf("trace %v", by)
	}
}
