// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// TestGrantBinds: whatever a tenant says and sets, at any time before or after the grant, it never has
// more than the grant in force, and it never loses what it has set itself below that.
func TestGrantBinds(t *testing.T) {
	for seed := range uint64(2) {
		random := rand.New(rand.NewPCG(seed, 15))
		var terms loop.Terms
		h := sessiontest.Start(t, func(c *sessiontest.Config) {
			sessiontest.Users(c, 1000)
			c.Loop.UID = int(seed % 2) // with and without limits of users
			c.Loop.Limits.Others = loop.Limit{Priority: 3, Share: 60}
		})
		c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		c.Queue(0)
		c.Queue(1)
		who := h.Only(t)
		names := []string{"priority", "lax_priority", "critical_priority", "utilization", "level", "gang", "slo_us"}
		change := func() model.HintChange {
			var out model.HintChange
			for range 1 + random.IntN(3) {
				f := model.FieldOf(names[random.IntN(len(names))])
				v := model.HintValue{Number: f.Min + random.Int64N(f.Max-f.Min+1)}
				if f.Kind == model.HintName {
					v = model.HintValue{Text: "g"}
				}
				if f.Name == "level" {
					v.Number = random.Int64N(2)
				}
				out.Set(f.Name, v)
			}
			return out
		}
		for step := range 150 {
			switch random.IntN(5) {
			case 0:
				terms = loop.Terms{}
				if random.IntN(4) > 0 {
					top := model.Priority(random.IntN(500) - 250)
					terms.Hint.Set("priority", model.HintValue{Number: int64(top)})
					terms.Grant = loop.Grant{Ceiling: &top, Share: random.IntN(100)}
				}
				if err := h.SetAllTerms(t.Context(), map[model.SessionID]loop.Terms{who.ID: terms}); err != nil {
					t.Fatal(err)
				}
			case 1, 2:
				one := change()
				_, _ = h.SetHint(t.Context(), who.PID, random.IntN(2) == 0, one, nil) // may be refused
			case 3:
				_, _ = h.SetQueueHint(t.Context(), who.PID, uint32(random.IntN(2)), random.IntN(2) == 0, change(), func(*model.Hint) error { return nil })
			case 4:
				c.Hint(t, []uint32{wire.QueueAll, 0, 1}[random.IntN(3)], wire.Hint{Said: wire.HintPriority | wire.HintUtilization, Priority: int64(random.IntN(500) - 250), Utilization: int64(random.IntN(101))}, "")
			}
			if terms.Grant.Ceiling == nil {
				continue
			}
			got := h.Only(t)
			hints := []model.Hint{got.Hint}
			for _, q := range got.Queues {
				hints = append(hints, q.Hint)
				if q.Hint.Cap.On && q.Hint.Cap.Priority > *terms.Grant.Ceiling || !q.Hint.Cap.On && *terms.Grant.Ceiling != model.PriorityMax {
					t.Fatalf("seed %d, step %d: the engine's limit is %+v, the grant %d", seed, step, q.Hint.Cap, *terms.Grant.Ceiling)
				}
			}
			for _, hint := range hints {
				for _, p := range []model.Priority{hint.Priority, hint.LaxPriority, hint.CriticalPriority} {
					if p > *terms.Grant.Ceiling && p != 0 || hint.Priority > *terms.Grant.Ceiling {
						t.Fatalf("seed %d, step %d: %+v, the grant %d", seed, step, hint, *terms.Grant.Ceiling)
					}
				}
				if share := terms.Grant.Share; share != 0 && (hint.Utilization > share || hint.Utilization == 0) {
					t.Fatalf("seed %d, step %d: share %d, the grant %d", seed, step, hint.Utilization, share)
				}
			}
		}
	}
}

// TestOldTerms: terms that were computed before newer ones were applied do not replace them.
func TestOldTerms(t *testing.T) {
	h := ruled(t, &loop.Terms{})
	c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	who := h.Only(t)
	for i, number := range []uint64{2, 1, 2, 3} {
		top := model.Priority(10 + i)
		terms := loop.Terms{Number: number, Grant: loop.Grant{Ceiling: &top}}
		terms.Hint.Set("priority", model.HintValue{Number: int64(top)})
		if err := h.SetAllTerms(t.Context(), map[model.SessionID]loop.Terms{who.ID: terms}); err != nil {
			t.Fatal(err)
		}
		want := []model.Priority{10, 10, 12, 13}[i]
		if got := h.Only(t).Hint; got.Priority != want {
			t.Errorf("step %d: priority %d, want %d", i, got.Priority, want)
		}
	}
}

// TestGrantEnds: a grant pins hints, and its end returns them to what the program said.
func TestGrantEnds(t *testing.T) {
	h := ruled(t, &loop.Terms{})
	c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1, Hint: wire.Hint{Said: wire.HintPriority, Priority: -4}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	who := h.Only(t)
	top := model.Priority(50)
	terms := loop.Terms{
		Hint:  sessiontest.Change("priority", "50"),
		Grant: loop.Grant{Ceiling: &top, Share: 20, Pinned: sessiontest.Change("slo_us", "5ms"), Owner: "pods/n@50"},
	}
	set := func(t1 loop.Terms) {
		t.Helper()
		if err := h.SetAllTerms(t.Context(), map[model.SessionID]loop.Terms{who.ID: t1}); err != nil {
			t.Fatal(err)
		}
	}
	set(terms)
	if got := h.Only(t).Hint; got.Priority != -4 || got.Utilization != 20 || got.SLO.String() != "P99 <= 5ms" {
		t.Errorf("with the grant: %+v", got)
	}
	for _, refused := range []model.HintChange{sessiontest.Change("priority", "51"), sessiontest.Change("utilization", "21"), sessiontest.Change("slo_us", "9ms")} {
		if _, err := h.SetHint(t.Context(), who.PID, true, refused, nil); !errors.Is(err, loop.ErrPinned) {
			t.Errorf("%v: %v", refused.Texts(), err)
		}
	}
	if _, err := h.SetHint(t.Context(), who.PID, true, sessiontest.Change("priority", "49"), nil); err != nil {
		t.Error(err)
	}
	if got := h.Only(t).Hint; got.Priority != 49 {
		t.Errorf("within the grant: %+v", got)
	}
	for _, own := range []string{"9ms", "0"} { // root's own value, and back to that of the grant
		change := sessiontest.Change("slo_us", own)
		if _, err := h.EditHint(t.Context(), loop.HintEdit{PID: who.PID, Change: change, Raises: true, Pins: true}); err != nil {
			t.Fatal(err)
		}
		hint, err := h.SetHint(t.Context(), who.PID, true, change, nil)
		want := map[string]string{"9ms": "P99 <= 9ms", "0": "P99 <= 5ms"}[own]
		if got := h.Only(t).Hint; err != nil || hint.SLO.String() != want || got.SLO.String() != want {
			t.Errorf("root set %s: %v and %v, %v", own, hint.SLO, got.SLO, err)
		}
	}
	// The administrator's own hint about one process goes before the grant.
	higher, slo := sessiontest.Change("priority", "60"), sessiontest.Change("slo_us", "7ms")
	higher.Merge(&slo)
	if _, err := h.EditHint(t.Context(), loop.HintEdit{PID: who.PID, Change: higher, Raises: true, Pins: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.SetHint(t.Context(), who.PID, true, higher, nil); err != nil {
		t.Error(err)
	}
	if got := h.Only(t).Hint; got.Priority != 60 || got.SLO.String() != "P99 <= 7ms" {
		t.Errorf("set by root: %+v", got)
	}
	set(loop.Terms{})
	if got := h.Only(t).Hint; got.Priority != 60 || got.SLO.String() != "P99 <= 7ms" || got.Utilization != 40 {
		t.Errorf("after the grant: %+v", got)
	}
}

// TestGrantTakenBack: a program that has said nothing returns to the default, and what it set within the
// grant does not outlast it.
func TestGrantTakenBack(t *testing.T) {
	top := model.Priority(50)
	terms := loop.Terms{Hint: sessiontest.Change("priority", "50"), Grant: loop.Grant{Ceiling: &top}}
	h := ruled(t, &terms)
	c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	who := h.Only(t)
	if who.Hint.Priority != 50 {
		t.Errorf("at the start: %+v", who.Hint)
	}
	for _, asked := range []string{"", "20"} {
		if asked != "" {
			if _, err := h.SetHint(t.Context(), who.PID, true, sessiontest.Change("priority", asked), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.SetAllTerms(t.Context(), map[model.SessionID]loop.Terms{who.ID: {}}); err != nil {
			t.Fatal(err)
		}
		if got := h.Only(t).Hint; got.Priority > 2 { // the limit of the user
			t.Errorf("after the grant, with %q set: %+v", asked, got)
		}
		if err := h.SetAllTerms(t.Context(), map[model.SessionID]loop.Terms{who.ID: terms}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGrantPool: programs have the share of a grant together with its pool, until the administrator gives
// the program its own. Those that have a grant without a share are best effort.
func TestGrantPool(t *testing.T) {
	terms := loop.Terms{Grant: loop.Grant{Share: 40, Pool: "ml/claim"}}
	h := ruled(t, &terms)
	c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.Queue(0)
	who := h.Only(t)
	want := func(what, pool string, share int) {
		t.Helper()
		if got := h.Only(t).Queues[0].Hint; got.Pool != pool || got.Utilization != share {
			t.Errorf("%s: pool %q, share %d", what, got.Pool, got.Utilization)
		}
	}
	set := func(terms loop.Terms) {
		t.Helper()
		if err := h.SetAllTerms(t.Context(), map[model.SessionID]loop.Terms{who.ID: terms}); err != nil {
			t.Fatal(err)
		}
	}
	want("at the start", "ml/claim", 40)
	set(loop.Terms{Grant: loop.Grant{Share: 40, Pool: "ml/other"}})
	want("with another claim", "ml/other", 40)
	set(loop.Terms{Grant: loop.Grant{Pool: "ml/other"}})
	want("without a share, the user's limit", "", 40)
	top := model.Priority(5)
	set(loop.Terms{Grant: loop.Grant{Ceiling: &top}})
	want("granted without a share", model.PoolBestEffort, 40)
	set(terms)
	own := sessiontest.Change("utilization", "70")
	if _, err := h.EditHint(t.Context(), loop.HintEdit{PID: who.PID, Change: own, Raises: true, Pins: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.SetHint(t.Context(), who.PID, true, own, nil); err != nil {
		t.Fatal(err)
	}
	want("with a share of the administrator", "", 70)
}

// TestPoolGroup: the queues of a program in a pool stay together when one of its hints changes.
func TestPoolGroup(t *testing.T) {
	terms := loop.Terms{Grant: loop.Grant{Share: 40, Pool: "ml/claim"}}
	h := ruled(t, &terms)
	c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.Queue(0)
	c.Queue(1)
	if _, err := h.SetHint(t.Context(), h.Only(t).PID, true, sessiontest.Change("priority", "-3"), nil); err != nil {
		t.Fatal(err)
	}
	var queues []engine.QueueState
	read := func(e *engine.Engine) { queues = e.Snapshot(0) }
	if err := h.Reconfigure(t.Context(), loop.Limits{Others: loop.Limit{Priority: 2, Share: 40}}, nil, read); err != nil {
		t.Fatal(err)
	}
	if len(queues) != 2 {
		t.Fatalf("%d queues", len(queues))
	}
	for _, q := range queues {
		if q.Queue.Hint.PerQueue || q.Queue.Hint.Pool != "ml/claim" || q.Queue.Hint.Priority != -3 {
			t.Errorf("queue %v is scheduled by itself: %+v", q.Queue.ID, q.Queue.Hint)
		}
	}
}

// TestUngrantedGPU: on a GPU that its pod was not granted a program is best effort, whatever it says and the grant
// gives. On the granted one it has what the grant gives. Root's own word about the process counts.
func TestUngrantedGPU(t *testing.T) {
	h := ruled(t, &loop.Terms{})
	c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.Queue(0)
	c.Page.CreateQueue(1, 0, 2<<8)
	c.Ring()
	other := model.MakeDeviceID(0, 2, 0, 0)
	who := h.Only(t)
	top := model.Priority(50)
	terms := loop.Terms{
		Hint:  sessiontest.Change("priority", "50"),
		Grant: loop.Grant{Ceiling: &top, Share: 60, Pool: "claim", Pinned: sessiontest.Change("slo_us", "5ms"), Devices: []model.DeviceID{sessiontest.GPU}},
	}
	set := func() loop.ClientView {
		t.Helper()
		if err := h.SetAllTerms(t.Context(), map[model.SessionID]loop.Terms{who.ID: terms}); err != nil {
			t.Fatal(err)
		}
		return h.Only(t)
	}
	got := set()
	if len(got.Ungranted) != 1 || got.Ungranted[0] != other || got.PriorityNote == "" {
		t.Errorf("ungranted %v, note %q", got.Ungranted, got.PriorityNote)
	}
	if q := got.Queues[0].Hint; q.Priority != 50 || q.Utilization != 60 || q.Pool != "claim" {
		t.Errorf("on the granted GPU: %+v", q)
	}
	lowest := func(q model.Hint) bool {
		return q.Priority == model.PriorityMin && q.Utilization == 0 && q.Pool == model.PoolBestEffort && q.Cap == model.Cap{On: true, Priority: model.PriorityMin} && !q.SLO.Said()
	}
	if !lowest(got.Queues[1].Hint) {
		t.Errorf("on the other: %+v", got.Queues[1].Hint)
	}
	c.Hint(t, 1, wire.Hint{Said: wire.HintPriority, Priority: 40}, "")
	if q := h.Only(t).Queues[1].Hint; !lowest(q) {
		t.Errorf("after a hint of the program: %+v", q)
	}
	terms.Grant.Devices = append(terms.Grant.Devices, other)
	if got := set(); len(got.Ungranted) != 0 || got.Queues[1].Hint.Priority != 40 || got.PriorityNote != "" {
		t.Errorf("after a grant of both: %+v", got)
	}
	terms.Grant.Devices = terms.Grant.Devices[:1]
	set()
	change := sessiontest.Change("priority", "60")
	if _, err := h.EditHint(t.Context(), loop.HintEdit{PID: who.PID, Change: change, Raises: true, Pins: true}); err != nil {
		t.Fatal(err)
	}
	if q := h.Only(t).Queues[1].Hint; q.Priority != 40 { // what the program asked for, within root's 60
		t.Errorf("root's own word: %+v", q)
	}
}
