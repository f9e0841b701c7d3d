// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"errors"
	"testing"

	"xsched/internal/engine"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// A cap of a group counts for processes of the host, the highest of several, and behind that of the user.
func TestCapOfGroups(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		c.Loop.UID = 0
		c.Loop.Limits = loop.Limits{
			Others: loop.Limit{Priority: 1, Share: 80}, Users: map[int]loop.Limit{1000: {Priority: 2, Share: 20}},
			Groups: map[int]loop.Limit{44: {Priority: 5, Share: 50}, 45: {Priority: -3}},
		}
	})
	for _, c := range []struct {
		user   identity.User
		groups []int
		want   loop.Limit
	}{
		{identity.OnHost(1001), nil, loop.Limit{Priority: 1, Share: 80}},
		{identity.OnHost(1001), []int{7, 44}, loop.Limit{Priority: 5, Share: 50}},
		{identity.OnHost(1001), []int{45, 44}, loop.Limit{Priority: 5}},
		{identity.OnHost(1001), []int{44, 45}, loop.Limit{Priority: 5}},
		{identity.OnHost(1000), []int{44}, loop.Limit{Priority: 2, Share: 20}},
		{identity.User{UID: 1001, Container: "/docker/1"}, []int{44}, loop.Limit{Priority: 1, Share: 80}},
		{identity.User{UID: 1001, Namespace: 5, Creator: 1001}, []int{44}, loop.Limit{Priority: 1, Share: 80}},
		{identity.User{UID: 1000, Container: "pid:[9]"}, []int{44}, loop.Limit{Priority: 1, Share: 20}},
		{identity.User{}, []int{45}, loop.Limit{Priority: model.PriorityMax}},
	} {
		if got := h.LimitOf(c.user, c.groups); got != c.want {
			t.Errorf("%v in %v: %+v, want %+v", c.user, c.groups, got, c.want)
		}
	}
}

// ruled starts a daemon of root for a user with priority cap 2 and share cap 40.
func ruled(t *testing.T, terms *loop.Terms) *sessiontest.Fixture {
	t.Helper()
	return sessiontest.Start(t, func(c *sessiontest.Config) {
		sessiontest.Users(c, 1000)
		c.Loop.UID = 0
		c.Loop.Limits.Others = loop.Limit{Priority: 2, Share: 40}
		c.Session.Terms = func(loop.Identity) loop.Terms { return *terms }
	})
}

func rule(granted model.Priority, hints ...string) loop.Terms {
	t := loop.Terms{Rule: "r", Granted: granted}
	for i := 0; i < len(hints); i += 2 {
		change := sessiontest.Change(hints[i], hints[i+1])
		t.Hint.Merge(&change)
	}
	return t
}

// TestPrecedence: a hint of the program replaces the rule's, within the cap that the rule raises if it is
// authorised, and a hint of a control client replaces both. A reload changes only what nobody has set.
func TestPrecedence(t *testing.T) {
	terms := rule(0, "priority", "9", "slo_us", "5ms", "utilization", "90")
	h := ruled(t, &terms)
	c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	pid := h.Only(t).PID
	expect := func(when string, priority model.Priority, share int, slo string) {
		t.Helper()
		got := h.Only(t)
		if got.Hint.Priority != priority || got.Hint.Utilization != share || got.Hint.SLO.String() != slo {
			t.Errorf("%s: priority %d, share %d, %v; want %d, %d, %s", when, got.Hint.Priority, got.Hint.Utilization, got.Hint.SLO, priority, share, slo)
		}
	}
	reload := func(next loop.Terms, limits loop.Limits) {
		t.Helper()
		all, err := h.Identities(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		if err := h.Reconfigure(t.Context(), limits, map[model.SessionID]loop.Terms{all[0].ID: next}, func(*engine.Engine) {}); err != nil {
			t.Fatal(err)
		}
	}
	limits := loop.Limits{Others: loop.Limit{Priority: 2, Share: 40}}
	expect("a rule without authority stays within the caps", 2, 40, "P99 <= 5ms")
	reload(rule(9, "priority", "9", "slo_us", "6ms"), limits)
	expect("an authorised rule", 9, 40, "P99 <= 6ms")
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintPriority, Priority: 7}, "")
	sessiontest.Await(t, "the program's priority", func() bool { return h.Only(t).Hint.Priority == 7 })
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintPriority, Priority: 50}, "")
	sessiontest.Await(t, "the program's priority, up to the rule's", func() bool { return h.Only(t).Hint.Priority == 9 })
	reload(rule(8, "priority", "8"), limits)
	expect("without the target, with a lower grant", 8, 40, "none")
	if _, err := h.SetHint(t.Context(), pid, true, sessiontest.Change("priority", "1"), nil); err != nil {
		t.Fatal(err)
	}
	expect("the operator's", 1, 40, "none")
	reload(rule(8, "priority", "8", "slo_us", "7ms"), limits)
	expect("the operator's stays", 1, 40, "P99 <= 7ms")
	reload(loop.Terms{}, loop.Limits{Others: loop.Limit{Priority: 0, Share: 30}})
	expect("lower caps", 0, 30, "none")
	reload(loop.Terms{}, loop.Limits{Others: loop.Limit{Priority: 5}})
	expect("higher caps", 1, 0, "none")
}

// TestGrantOfARuleEnds: a hint of the user does not make the rule's grant a lasting one, neither for the
// process nor for a queue.
func TestGrantOfARuleEnds(t *testing.T) {
	terms := rule(9, "priority", "9")
	h := ruled(t, &terms)
	c := h.Client(t, 0, wire.LevelBlock)
	c.Queue(0)
	sessiontest.Await(t, "the queue is known", func() bool { return h.Loop.Stats().Queues == 1 })
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintPriority, Priority: 9}, "")
	sessiontest.Await(t, "the rule's priority", func() bool { return h.Only(t).Hint.Priority == 9 })
	who := h.Only(t)
	own := sessiontest.Change("lax_priority", "1")
	if _, err := h.SetHint(t.Context(), who.PID, true, own, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.SetQueueHint(t.Context(), who.PID, 0, true, own, func(*model.Hint) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if _, kept, err := h.Kept(t.Context(), who.PID); err != nil || kept.Granted > 2 {
		t.Errorf("kept grant %d, %v", kept.Granted, err)
	}
	limits := loop.Limits{Others: loop.Limit{Priority: 2, Share: 40}}
	if err := h.Reconfigure(t.Context(), limits, map[model.SessionID]loop.Terms{who.ID: {}}, func(*engine.Engine) {}); err != nil {
		t.Fatal(err)
	}
	if v := h.Only(t); v.Hint.Priority != 2 || v.Queues[0].Hint.Priority != 2 || v.Queues[0].Hint.Cap.Priority != 2 {
		t.Errorf("without the rule: priority %d, queue %d with cap %+v", v.Hint.Priority, v.Queues[0].Hint.Priority, v.Queues[0].Hint.Cap)
	}
}

// TestCeilingBeforeRule: the priority that the administrator set for a process binds it although a rule
// grants more.
func TestCeilingBeforeRule(t *testing.T) {
	terms := rule(9, "priority", "9")
	h := ruled(t, &terms)
	c := h.Client(t, 0, wire.LevelBlock)
	pid := h.Only(t).PID
	low := sessiontest.Change("priority", "-5")
	if _, err := h.EditHint(t.Context(), loop.HintEdit{PID: pid, Change: low, Raises: true, Pins: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.SetHint(t.Context(), pid, true, low, nil); err != nil {
		t.Fatal(err)
	}
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintLaxity | wire.HintK, CriticalPriority: 9, K: 3}, "")
	sessiontest.Await(t, "the hint is taken", func() bool { return h.Only(t).Hint.K == 3 })
	if v := h.Only(t); v.Hint.Priority != -5 || v.Hint.CriticalPriority != -5 {
		t.Errorf("priority %d, critical %d", v.Hint.Priority, v.Hint.CriticalPriority)
	}
}

// TestKeptHints: what control clients set under a previous daemon comes back, and the administrator's
// part still binds the program.
func TestKeptHints(t *testing.T) {
	top := model.Priority(-4)
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		sessiontest.Users(c, 1000)
		c.Loop.UID = 0
		c.Session.Kept = func(loop.Identity) loop.Kept {
			return loop.Kept{Set: sessiontest.Change("priority", "-7"), Pinned: sessiontest.Change("utilization", "20"), Ceiling: &top, Held: true}
		}
	})
	c := h.Client(t, 0, wire.LevelAuto)
	if v := h.Only(t); v.Hint.Priority != -7 || v.Hint.Utilization != 20 || !v.Held {
		t.Errorf("%+v", v)
	}
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintPriority | wire.HintUtilization, Priority: 0, Utilization: 90}, "")
	sessiontest.Await(t, "the program's hint, within the administrator's", func() bool {
		v := h.Only(t)
		return v.Hint.Priority == -4 && v.Hint.Utilization == 20
	})
	_, kept, err := h.Kept(t.Context(), h.Only(t).PID)
	if err != nil || !kept.Held || kept.Ceiling == nil || *kept.Ceiling != -4 || !kept.Pinned.Has("utilization") || kept.Set.Has("priority") {
		t.Errorf("%+v, %v", kept, err)
	}
}

// TestShareCap: a user can't get rid of the share cap by unsetting the share, of a process or a queue.
func TestShareCap(t *testing.T) {
	h := ruled(t, &loop.Terms{})
	h.Client(t, 0, wire.LevelAuto).Queue(0)
	sessiontest.Await(t, "the queue", func() bool { return len(h.Only(t).Queues) == 1 })
	pid := h.Only(t).PID
	unset := sessiontest.Change("utilization", "0")
	if note := h.MayHave(identity.OnHost(1000), nil, &unset); note != "" {
		t.Error(note)
	}
	hint, err := h.SetHint(t.Context(), pid, false, unset, nil)
	if err != nil || hint.Utilization != 40 || h.Only(t).Hint.Utilization != 40 {
		t.Errorf("share %d, want 40 (%v)", hint.Utilization, err)
	}
	hint, err = h.SetQueueHint(t.Context(), pid, 0, false, unset, func(*model.Hint) error { return nil })
	if err != nil || hint.Utilization != 40 {
		t.Errorf("share of the queue %d, want 40 (%v)", hint.Utilization, err)
	}
	// The administrator pins what it sets.
	most := sessiontest.Change("utilization", "90")
	if _, err := h.EditHint(t.Context(), loop.HintEdit{PID: pid, Change: most, Raises: true, Pins: true}); err != nil {
		t.Fatal(err)
	}
	if hint, err = h.SetHint(t.Context(), pid, false, most, nil); err != nil || hint.Utilization != 90 {
		t.Errorf("share %d, want 90 (%v)", hint.Utilization, err)
	}
}

// A refused edit of the administrator pins nothing: the user can still set the same hints.
func TestRefusedEditPinsNothing(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, 1000) })
	h.Client(t, 0, wire.LevelBlock).Queue(0)
	sessiontest.Await(t, "the queue is known", func() bool { return h.Loop.Stats().Queues == 1 })
	pid := h.Only(t).PID
	refusal := errors.New("refused")
	queue := uint32(0)
	for name, at := range map[string]*uint32{"process": nil, "queue": &queue} {
		edit := sessiontest.Change("priority", "-7")
		share := sessiontest.Change("utilization", "20")
		edit.Merge(&share)
		_, err := h.EditHint(t.Context(), loop.HintEdit{
			PID: pid, Queue: at, Change: edit, Raises: true, Pins: true, Check: func(*model.Hint) error { return refusal },
		})
		if !errors.Is(err, refusal) {
			t.Fatalf("%s: %v", name, err)
		}
		for _, own := range []model.HintChange{sessiontest.Change("utilization", "50"), sessiontest.Change("priority", "-3")} {
			if _, err := h.EditHint(t.Context(), loop.HintEdit{PID: pid, Queue: at, Change: own}); err != nil {
				t.Errorf("%s: the user sets it after the refusal: %v", name, err)
			}
		}
	}
}
