// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// onLoop calls f on the loop with a client that has one quiet queue.
func onLoop(t *testing.T, f func(h *sessiontest.Fixture, c *sessiontest.Client, known *loop.Client, now model.Time)) {
	t.Helper()
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 10, 0)
	c.Queue(0)
	sessiontest.Await(t, "it is quiet", func() bool { return c.Page.Quiet(0) })
	if err := h.Call(t.Context(), func() { f(h, c, h.OnlyClient(), clock.Now()) }); err != nil {
		t.Fatal(err)
	}
}

// The engine learns how a request was fed only if the loop saw both of its transitions in time.
func TestFedIsLearntFromWholeRequests(t *testing.T) {
	const ms = time.Millisecond
	onLoop(t, func(h *sessiontest.Fixture, c *sessiontest.Client, known *loop.Client, now model.Time) {
		id := model.QueueID{Session: known.ID}
		pass := func(d time.Duration) model.Time { now = now.Add(d); return now }
		learnt := func(what string, known int) {
			t.Helper()
			for _, st := range h.EngineOnLoop().Snapshot(now) {
				if st.Queue.ID == id && st.Segments.Known != known {
					t.Errorf("%s: %+v, want %d", what, st.Segments, known)
				}
			}
		}
		request := func(sees bool) {
			c.Page.SetBusy(0, true, pass(ms))
			if sees {
				h.ScanAt(now, known)
			}
			c.Page.SetFed(0, pass(3*ms))
			c.Page.SetBusy(0, false, pass(ms/10))
		}
		// Quiet: its work was seen late, so that it looks like a short one.
		c.Page.SetBusy(0, true, pass(ms))
		pass(17 * ms)
		h.SampleAt(now)
		c.Page.SetFed(0, pass(2*ms))
		c.Page.SetBusy(0, false, pass(ms/10))
		other := model.QueueID{Session: 99}
		h.EngineOnLoop().AddQueue(now, model.Queue{ID: other, PID: 99, Device: sessiontest.GPU})
		h.EndPollingAt(now)
		if known.QueuePolled(0) {
			t.Error("quiet beside another one")
		}
		learnt("seen late", 0)
		request(false)
		h.ScanAt(now, known)
		learnt("not seen", 0)
		request(true)
		h.ScanAt(now, known)
		learnt("one", 1)
		request(true)
		request(false)
		h.ScanAt(now, known)
		learnt("two seen as one", 1)
		request(true)
		h.ScanAt(now, known)
		learnt("another", 2)
		c.Page.SetBusy(0, true, pass(ms))
		pass(4 * ms)
		h.ScanAt(now, known)
		c.Page.SetFed(0, pass(3*ms))
		c.Page.SetBusy(0, false, pass(ms/10))
		h.ScanAt(now, known)
		learnt("its beginning was seen late", 2)
		c.Page.SetBusy(0, true, pass(ms))
		h.ScanAt(now, known)
		c.Page.SetFed(0, pass(3*ms))
		c.Page.SetBusy(0, false, pass(ms/10))
		pass(4 * ms)
		h.ScanAt(now, known)
		learnt("its end was seen late", 2)
		h.EngineOnLoop().RemoveQueue(now, other)
	})
}

// besideLow gives a client a high priority and a busy low queue on its device.
func besideLow(h *sessiontest.Fixture, known *loop.Client, now model.Time) (*engine.Engine, model.QueueID) {
	low := model.QueueID{Session: 99}
	e := h.EngineOnLoop()
	e.SetHint(now, 10, model.Hint{Priority: 10})
	if err := e.SetPolicy("HPF/in-time"); err != nil { // otherwise short requests gather on the device
		panic(err)
	}
	e.AddQueue(now, model.Queue{ID: low, PID: 99, Device: sessiontest.GPU, Level: model.LevelInterrupt, Slices: true})
	e.SetLevel(now, model.QueueID{Session: known.ID}, model.LevelInterrupt, model.LevelInterrupt, true)
	e.SetBusy(now, low, true)
	h.EndPollingAt(now)
	return e, low
}

// TestProgressIsRead: the loop asks a launch-bound program for its launches, reads them shortly before the expected
// wait, and stops the low one then.
func TestProgressIsRead(t *testing.T) {
	const ms = time.Millisecond
	onLoop(t, func(h *sessiontest.Fixture, c *sessiontest.Client, known *loop.Client, now model.Time) {
		e, low := besideLow(h, known, now)
		launches := uint64(0)
		pass := func(d time.Duration) { now = now.Add(d) }
		begin := func() {
			pass(ms)
			c.Page.SetBusy(0, true, now)
			h.ScanAt(now, known)
		}
		end := func() {
			c.Page.SetFed(0, now)
			h.ScanAt(now, known)
			pass(ms / 20)
			c.Page.SetTally(0, launches, 0)
			c.Page.SetBusy(0, false, now)
			h.ScanAt(now, known)
		}
		for range 3 {
			if c.Page.Tell(0) != 0 {
				t.Error("asked for the progress of a program of unknown class")
			}
			begin()
			pass(9 * ms)
			launches += 300
			end()
		}
		if c.Page.Tell(0) != wire.TellProgress|wire.TellWait {
			t.Errorf("asked for %d", c.Page.Tell(0))
		}
		stopped := func() bool { return e.Kept(low) }
		h.DecideAt(now)
		begin()
		h.DecideAt(now)
		if stopped() {
			t.Error("the low one is stopped at once")
		}
		base := launches
		for range 18 {
			pass(ms / 2)
			launches = min(launches+300/18+1, base+300)
			c.Page.SetTally(0, launches, 0)
			h.DecideAt(now)
			if on := stopped(); on && launches < base+210 || !on && launches > base+270 {
				t.Errorf("after %d of 300 launches: stopped %v", launches-base, on)
			}
		}
		if !stopped() {
			t.Error("the low one was not stopped")
		}
		end()
		h.DecideAt(now)
		if stopped() {
			t.Error("the low one is still stopped")
		}
		e.RemoveQueue(now, low)
	})
}

// TestOneThreadWaits: one thread waits, and another one submits. The loop reports that wait once, so that the low one is
// hardly ever stopped.
func TestOneThreadWaits(t *testing.T) {
	const ms = time.Millisecond
	onLoop(t, func(h *sessiontest.Fixture, c *sessiontest.Client, known *loop.Client, now model.Time) {
		e, low := besideLow(h, known, now)
		launches := uint64(0)
		for range 4 {
			now = now.Add(ms)
			c.Page.SetBusy(0, true, now)
			h.ScanAt(now, known)
			now = now.Add(9 * ms)
			launches += 300
			c.Page.SetTally(0, launches, 0)
			c.Page.SetFed(0, now)
			h.ScanAt(now, known)
			now = now.Add(ms / 20)
			c.Page.SetBusy(0, false, now)
			h.ScanAt(now, known)
		}
		now = now.Add(ms)
		c.Page.SetBusy(0, true, now)
		c.Page.SetFed(0, now.Add(ms/100))
		h.ScanAt(now.Add(ms/50), known)
		stopped := 0
		for range 2000 {
			now = now.Add(ms / 2)
			launches += 12
			c.Page.SetTally(0, launches, 0)
			h.DecideAt(now)
			if e.Kept(low) {
				stopped++
			}
		}
		if stopped > 2000/10 {
			t.Errorf("the low one is stopped in %d of 2000 looks", stopped)
		}
		e.RemoveQueue(now, low)
	})
}

// TestMomentsOfIdlenessAreNotNeeded: a program that goes on at once is idle so briefly that the loop never sees it, as with
// a language model's prompt and its tokens. The loop still tells its requests apart.
func TestMomentsOfIdlenessAreNotNeeded(t *testing.T) {
	const ms = time.Millisecond
	onLoop(t, func(h *sessiontest.Fixture, c *sessiontest.Client, known *loop.Client, now model.Time) {
		id, other := model.QueueID{Session: known.ID}, model.QueueID{Session: 99}
		e := h.EngineOnLoop()
		e.AddQueue(now, model.Queue{ID: other, PID: 99, Device: sessiontest.GPU})
		h.EndPollingAt(now)
		pass := func(d time.Duration) model.Time { now = now.Add(d); return now }
		check := func(what string, learnt int, tell uint32) {
			t.Helper()
			h.ScanAt(now, known)
			for _, st := range e.Snapshot(now) {
				if st.Queue.ID == id && st.Segments.Known != learnt {
					t.Errorf("%s: %d requests learnt, want %d", what, st.Segments.Known, learnt)
				}
			}
			if c.Page.Tell(0) != tell {
				t.Errorf("%s: the daemon asks for %d, want %d", what, c.Page.Tell(0), tell)
			}
		}
		next := func() {
			c.Page.SetBusy(0, false, pass(ms/10))
			c.Page.SetBusy(0, true, pass(ms/20))
		}
		const tells = wire.TellProgress | wire.TellWait
		c.Page.SetBusy(0, true, pass(ms))
		check("it begins", 0, 0)
		c.Page.SetFed(0, pass(2*ms))
		next()
		check("the next one has begun", 1, 0)
		c.Page.SetFed(0, pass(2*ms))
		next()
		c.Page.SetFed(0, pass(ms/20))
		check("the next one has begun and waits", 1, tells)
		next()
		check("another one has begun", 2, tells)
		c.Page.SetFed(0, pass(2*ms))
		check("it waits", 2, tells)
		next()
		c.Page.SetFed(0, pass(ms/20))
		check("its wait was told", 3, tells)
		e.RemoveQueue(now, other)
	})
}
