// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"testing"
	"time"

	"xsched/internal/driver"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// A user with too many queues keeps scheduled programs: queues beyond the limit are scheduled together
// with another one, and other users' queues have their places.
func TestQueuesBeyondTheLimitAreFolded(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, 1000, 1000, 1000, 1001, 1001) })
	const each = 1000
	var many []*sessiontest.Client
	for range 3 {
		c := h.Client(t, -10, wire.LevelBlock)
		for slot := range each {
			c.Page.SetTell(slot, wire.TellProgress|wire.TellLaunch) // of the slot's last queue
			c.Page.CreateQueue(slot, 0, 1<<8)
		}
		c.Ring()
		many = append(many, c)
	}
	sessiontest.Await(t, "all queues are known", func() bool {
		s := h.Loop.Stats()
		return s.Queues+s.Merged == 3*each
	})
	if s := h.Loop.Stats(); s.Queues > loop.MaxUserQueues+3 || s.Merged == 0 {
		t.Fatalf("%d queues and %d folded ones", s.Queues, s.Merged)
	}
	high := h.Client(t, 0, wire.LevelBlock)
	high.Queue(0)
	sessiontest.Await(t, "another user has a place", func() bool {
		v, err := h.Clients(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		last := v[len(v)-1]
		return len(last.Queues) == 1 && last.Queues[0].Merged == 0
	})
	// The last client's last queue is folded. It is held until the loop knows about its work.
	c, slot := many[2], each-1
	if v, err := h.Clients(t.Context()); err != nil || merged(v[2]) == 0 || merged(v[2])+len(v[2].Queues) != each {
		t.Fatalf("%d queues with %d merged ones, %v", len(v[2].Queues), merged(v[2]), err)
	}
	if !c.Held(slot) {
		t.Error("an idle folded queue is not held")
	}
	if tell := c.Page.Tell(slot); tell != 0 {
		t.Errorf("a folded queue rings at every launch: %#x", tell)
	}
	c.Busy(slot, true)
	sessiontest.Await(t, "it runs", func() bool { return !c.Held(slot) })
	high.Busy(0, true)
	sessiontest.Await(t, "it yields to a higher one", func() bool { return c.Held(slot) })
	// Without a proof of the GPU its host does not compete, and nothing holds it.
	hw, caps := h.Hardware(2), map[model.DeviceID]driver.Capability{sessiontest.GPU: {MaxLevel: model.LevelBlock}}
	shown := func(what string, caps map[model.DeviceID]driver.Capability) {
		t.Helper()
		hw.SetCaps(caps)
		h.Server.Refresh()
		sessiontest.Await(t, what, func() bool {
			v, err := h.Clients(t.Context())
			return err == nil && len(v[2].Caps) == len(caps)
		})
	}
	shown("the GPU is proved", caps)
	hw.Verify.Store(true)
	shown("the proof is withdrawn", nil)
	sessiontest.Await(t, "its gate opens", func() bool { return !c.Held(slot) })
	shown("the GPU is proved again", caps)
	sessiontest.Await(t, "it yields again", func() bool { return c.Held(slot) })
	high.Busy(0, false)
	sessiontest.Await(t, "it runs again", func() bool { return !c.Held(slot) })
	c.Busy(slot, false)
	sessiontest.Await(t, "it is held while it is idle", func() bool { return c.Held(slot) })
	// Places that become free go to the queues of a program whose host ends.
	for i := range each {
		many[0].Page.DestroyQueue(i)
	}
	many[0].Ring()
	sessiontest.Await(t, "places are free", func() bool {
		s := h.Loop.Stats()
		return s.Queues+s.Merged == 2*each+1
	})
	for i := range 10 {
		c.Page.DestroyQueue(i) // the host is one of the first
	}
	c.Ring()
	sessiontest.Await(t, "its queues have places", func() bool {
		v, err := h.Clients(t.Context())
		return err == nil && len(v[2].Queues) == each-10 && merged(v[2]) == 0
	})
	for _, c := range many {
		c.Close()
	}
	sessiontest.Await(t, "all have left", func() bool {
		s := h.Loop.Stats()
		return s.Queues == 1 && s.Merged == 0
	})
}

// merged returns the number of a client's queues that have no entry of their own.
func merged(v loop.ClientView) (n int) {
	for _, q := range v.Queues {
		n += q.Merged
	}
	return n
}

// TestQueuesBeyondAllLimits: one user fills as many pages as it likes. The loop keeps what the limits allow
// and refuses the others, a view has one entry for all merged queues, a new program of the user is
// scheduled all the same, and places that become free are used.
func TestQueuesBeyondAllLimits(t *testing.T) {
	const programs = 8
	uids := []int{1001}
	for range programs + 1 {
		uids = append(uids, 1000)
	}
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, uids...) })
	other := h.Client(t, 0, wire.LevelBlock)
	other.Queue(0)
	var many []*sessiontest.Client
	for range programs {
		c := h.Client(t, 0, wire.LevelBlock)
		for slot := range wire.MaxQueues {
			c.Page.CreateQueue(slot, 0, uint32(1+slot%2)<<8)
		}
		c.Ring()
		many = append(many, c)
	}
	const all = programs * wire.MaxQueues
	full := func(n int) func() bool {
		return func() bool {
			s := h.Loop.Stats()
			return s.Queues+s.Merged+s.RefusedQueues == 1+n && s.Queues >= loop.MaxUserQueues && s.Merged == loop.MaxMerged
		}
	}
	sessiontest.Await(t, "the limits are reached", full(all))
	if s := h.Loop.Stats(); s.Queues > 1+loop.MaxUserQueues+2*programs {
		t.Errorf("%d queues have a place", s.Queues)
	}
	v, err := h.Clients(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	entries, known := 0, 0
	for _, c := range v[1:] {
		entries += len(c.Queues)
		known += len(c.Queues) + merged(c) + c.Refused
	}
	if entries > loop.MaxUserQueues+2*programs || known != all {
		t.Errorf("%d entries for %d queues of %d", entries, known, all)
	}
	last := h.Client(t, 0, wire.LevelBlock)
	last.Queue(0)
	sessiontest.Await(t, "a new program is scheduled", full(all+1))
	if v, err = h.Clients(t.Context()); err != nil || len(v[programs+1].Queues) != 1 || !v[programs+1].Queues[0].Competes {
		t.Errorf("the new program has %+v, %v", v[programs+1].Queues, err)
	}
	many[0].Close()
	sessiontest.Await(t, "its queues are forgotten", func() bool {
		s := h.Loop.Stats()
		return s.Queues+s.Merged+s.RefusedQueues == 2+all-wire.MaxQueues
	})
	for _, c := range many[1:] {
		c.Ring()
	}
	sessiontest.Await(t, "free places are used", full(all+1-wire.MaxQueues))
	for _, c := range append(many, last) {
		c.Close()
	}
	sessiontest.Await(t, "all have left", func() bool {
		s := h.Loop.Stats()
		return s.Queues == 1 && s.Merged == 0 && s.RefusedQueues == 0
	})
}

// TestOffWhileSuspended: a worker loses control of a suspended program, and gets it back. The gates of merged queues
// follow their primary queue.
func TestOffWhileSuspended(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, 1000, 1000, 1000, 1001) })
	var many []*sessiontest.Client
	for range 3 {
		c := h.Client(t, -10, wire.LevelBlock)
		for slot := range 1000 {
			c.Page.CreateQueue(slot, 0, 1<<8)
		}
		c.Ring()
		many = append(many, c)
	}
	sessiontest.Await(t, "all queues are known", func() bool { s := h.Loop.Stats(); return s.Queues+s.Merged == 3000 })
	c, slot := many[2], 999
	c.Busy(slot, true)
	c.Busy(0, true)
	sessiontest.Await(t, "it runs", func() bool { return !c.Held(slot) })
	v, err := h.Clients(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.SetHeld(t.Context(), v[2].PID, true); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "it is suspended", func() bool { return c.Held(slot) && c.Held(0) })
	turn := func(why string) (merged, primary bool) {
		t.Helper()
		if err := h.Call(t.Context(), func() {
			h.Turn(h.ClientOf(v[2].ID), sessiontest.GPU, why)
			merged, primary = c.Held(slot), c.Held(0)
		}); err != nil {
			t.Fatal(err)
		}
		return merged, primary
	}
	if merged, primary := turn("the device does not answer"); merged || primary {
		t.Errorf("scheduling is off: held %v, its primary queue %v", merged, primary)
	}
	if merged, primary := turn(""); !merged || !primary {
		t.Errorf("scheduling is on again: held %v, its primary queue %v", merged, primary)
	}
}

// A user has a share of the loop, whatever its clients announce and hint at once.
func TestOneUserHasAShare(t *testing.T) {
	uids := []int{1001}
	for range 40 {
		uids = append(uids, 1000)
	}
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, uids...) })
	victim := h.Client(t, 0, wire.LevelBlock)
	victim.Queue(0)
	var bad []*sessiontest.Client
	for range 8 {
		c := h.Client(t, -20, wire.LevelBlock)
		for slot := range 1000 {
			c.Page.CreateQueue(slot, 0, 1<<8)
		}
		c.Ring()
		bad = append(bad, c)
	}
	start, spent := time.Now(), loopTime(t, h)
	ends := time.Now().Add(time.Second)
	for n := int64(0); time.Now().Before(ends); n++ {
		for _, c := range bad {
			c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintPriority | wire.HintUtilization, Priority: -n % 20, Utilization: 1 + n%99}, "")
			c.Busy(int(n%1000), n%2 == 0)
		}
	}
	late := h.Loop.Stats().Late
	n, at, top := late.Quantiles(0.5, 0.99)
	t.Logf("%d heartbeats, late by P50 %v, P99 %v, at most %v", n, at[0], at[1], top)
	// CPU time, because other programs of this machine delay the heartbeat too. The race detector makes all of
	// it slower, and what cannot be divided takes more than the share.
	if used := float64(loopTime(t, h)-spent) / float64(time.Since(start)); used > 0.8 && !raceEnabled {
		t.Errorf("one user takes %.0f %% of the loop's time", 100*used)
	} else {
		t.Logf("one user takes %.0f %% of the loop's time", 100*used)
	}
}
