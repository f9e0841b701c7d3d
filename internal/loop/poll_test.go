// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// sees returns the loop's view of the first queue of the nth client, as soon as the loop knows that queue.
func sees(t testing.TB, f *sessiontest.Fixture, n int) (q loop.QueueView) {
	t.Helper()
	sessiontest.Await(t, "the queue is known", func() bool {
		v, err := f.Clients(context.Background())
		if err != nil || len(v) <= n {
			t.Fatalf("%+v %v", v, err)
		}
		if len(v[n].Queues) == 0 {
			return false
		}
		q = v[n].Queues[0]
		return true
	})
	return q
}

func awaitQuiet(t testing.TB, c *sessiontest.Client, want bool) {
	t.Helper()
	sessiontest.Await(t, "quiet or not", func() bool { return c.Page.Quiet(0) == want })
}

// A program that is alone does not ring, but its state is known, also to the first decision about a
// second program.
func TestQuietWhileAlone(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c) })
	low := h.Client(t, -10, wire.LevelBlock)
	low.Queue(0)
	awaitQuiet(t, low, true)
	rings := h.Loop.Stats().Rings
	for range 1000 {
		low.Busy(0, true)
		low.Busy(0, false)
	}
	low.Busy(0, true)
	if got := h.Loop.Stats().Rings; got != rings {
		t.Errorf("%d rings while quiet", got-rings)
	}
	if q := sees(t, h, 0); !q.Busy || q.Transitions != 2001 {
		t.Errorf("busy %v after %d changes", q.Busy, q.Transitions)
	}
	high := h.Client(t, 10, wire.LevelBlock)
	high.Page.SetBusy(0, true, clock.Now()) // it comes with work
	high.Page.CreateQueue(0, 0, 1<<8)
	high.Page.SetBusy(0, true, clock.Now())
	high.Ring()
	sessiontest.Await(t, "low is held", func() bool { return low.Held(0) })
	if low.Page.Quiet(0) || high.Page.Quiet(0) {
		t.Error("quiet beside another")
	}
	if q := sees(t, h, 0); q.Preemptions != 1 {
		t.Errorf("%d preemptions: its work was not known", q.Preemptions)
	}
	high.Close()
	sessiontest.Await(t, "low runs", func() bool { return !low.Held(0) })
	awaitQuiet(t, low, true)
}

// Conditions that make transitions matter end quiet; it begins again after them.
func TestQuietEnds(t *testing.T) {
	ctx, pid := context.Background(), os.Getpid()
	hint := func(name, text string) func(h *sessiontest.Fixture) error {
		return func(h *sessiontest.Fixture) error {
			_, err := h.SetHint(ctx, pid, false, sessiontest.Change(name, text), nil)
			return err
		}
	}
	for name, c := range map[string]struct {
		on, off func(h *sessiontest.Fixture) error
	}{
		"held": {
			func(h *sessiontest.Fixture) error { return h.SetHeld(ctx, pid, true) },
			func(h *sessiontest.Fixture) error { return h.SetHeld(ctx, pid, false) },
		},
		"target": {
			hint("slo_us", "1ms"),
			hint("slo_us", "0"),
		},
		"gang": {
			hint("gang", "g"),
			hint("gang", ""),
		},
		"share": {
			hint("utilization", "20"),
			hint("utilization", "0"),
		},
		"observed": {
			func(h *sessiontest.Fixture) error {
				return h.Engine(ctx, func(e *engine.Engine) { e.Observe(func(*engine.Event) {}) })
			},
			func(h *sessiontest.Fixture) error {
				return h.Engine(ctx, func(e *engine.Engine) { e.Observe(nil) })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := sessiontest.Start(t, nil)
			cl := h.Client(t, 0, wire.LevelBlock)
			cl.Queue(0)
			awaitQuiet(t, cl, true)
			cl.Busy(0, true)
			if err := c.on(h); err != nil {
				t.Fatal(err)
			}
			awaitQuiet(t, cl, false)
			if !sees(t, h, 0).Busy {
				t.Error("its work is not known")
			}
			if err := c.off(h); err != nil {
				t.Fatal(err)
			}
			awaitQuiet(t, cl, true)
		})
	}
	t.Run("stream of its own", func(t *testing.T) {
		h := sessiontest.Start(t, nil)
		cl := h.Client(t, 0, wire.LevelBlock)
		cl.Queue(0)
		awaitQuiet(t, cl, true)
		cl.Page.CreateStream(1, 0, 1<<8, 0)
		cl.Ring()
		awaitQuiet(t, cl, false)
		cl.Page.DestroyQueue(1)
		cl.Ring()
		awaitQuiet(t, cl, true)
		cl.Page.CreateQueue(1, 0, 2<<8) // on another GPU
		cl.Ring()
		sessiontest.Await(t, "both are known", func() bool { return h.Loop.Stats().Queues == 2 })
		sessiontest.Await(t, "both quiet", func() bool { return cl.Page.Quiet(0) && cl.Page.Quiet(1) })
	})
}

// Queues are never quiet while a recording runs, because it contains every transition.
func TestNeverQuietWhileRecording(t *testing.T) {
	log, err := record.Create(t.TempDir()+"/r", record.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	h := sessiontest.Start(t, func(c *sessiontest.Config) { c.Loop.Recorder = log })
	c := h.Client(t, 0, wire.LevelBlock)
	c.Queue(0)
	for i := range 50 {
		c.Busy(0, i%2 == 0)
		sessiontest.Await(t, "the change is seen", func() bool { return sees(t, h, 0).Transitions == uint64(i+1) })
		if c.Page.Quiet(0) {
			t.Fatal("quiet")
		}
	}
}

// A program changes its state until quiet ends, because another program creates a queue. From then on
// the loop reads the page only after a ring, so a transition lost in between would stay lost.
func TestQuietLosesNothing(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c) })
	first, second := h.Client(t, 0, wire.LevelBlock), h.Client(t, 0, wire.LevelBlock)
	first.Queue(0)
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		awaitQuiet(t, first, true)
		begun, hammered := first.Page.Page.Queue(0).Transitions, make(chan struct{})
		go func() {
			for n := 0; first.Page.Quiet(0); n++ {
				first.Busy(0, n%2 == 0)
				for pause := clock.Now() + 500; clock.Now() < pause; {
					// So that its last change most likely is a silent one.
				}
			}
			close(hammered)
		}()
		sessiontest.Await(t, "it hammers", func() bool { return first.Page.Page.Queue(0).Transitions > begun })
		second.Queue(0)
		<-hammered
		is := first.Page.Page.Queue(0)
		sessiontest.Await(t, "the last change is known", func() bool { return sees(t, h, 0).Transitions == is.Transitions })
		if got := sees(t, h, 0).Busy; got != is.Busy() {
			t.Fatalf("busy %v, is %v", got, is.Busy())
		}
		first.Busy(0, false)
		second.Page.DestroyQueue(0)
		second.Ring()
	}
}

// worksFor waits until the accounts of the first client and the GPU equal want. Time reported late is
// accounted gradually.
func worksFor(t testing.TB, f *sessiontest.Fixture, want time.Duration) {
	t.Helper()
	var ran, gpu time.Duration
	for end := time.Now().Add(10 * time.Second); ran != want || gpu != want; time.Sleep(time.Millisecond) {
		times, err := f.GPUs(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if ran, gpu = sees(t, f, 0).Ran, times[sessiontest.GPU].Busy; ran > want || gpu > want || time.Now().After(end) {
			t.Fatalf("worked for %v, seen %v, GPU for %v", want, ran, gpu)
		}
	}
}

// unquiet ends quiet for a client and lets it begin again.
func unquiet(t testing.TB, f *sessiontest.Fixture, c, other *sessiontest.Client) {
	t.Helper()
	other.Queue(0)
	awaitQuiet(t, c, false)
	other.Page.DestroyQueue(0)
	other.Ring()
	awaitQuiet(t, c, true)
}

// The busy time of a quiet program is exact, however short its periods, and across several periods of
// quiet.
func TestQuietTimeIsExact(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c) })
	c, other := h.Client(t, 0, wire.LevelBlock), h.Client(t, 0, wire.LevelBlock)
	c.Queue(0)
	awaitQuiet(t, c, true)
	var worked time.Duration
	period := func(length time.Duration) (end model.Time) {
		begin := clock.Now()
		c.Page.SetBusy(0, true, begin)
		end = clock.Now().Add(length)
		c.Page.SetBusy(0, false, end)
		worked += end.Sub(begin)
		return end
	}
	for i := range 20000 {
		period(0)
		if i == 10000 { // idle, so that nothing is added while it rings
			unquiet(t, h, c, other)
		}
	}
	// Held up between looking at the clock and writing an end, the program seems to go on, and as much of its
	// next periods has been counted. So one follows that is longer than that and says its end in time.
	for length := 10 * time.Millisecond; ; length *= 2 {
		seen := sees(t, h, 0).Ran
		if end := period(length); clock.Now() <= end && seen <= worked {
			break
		}
	}
	worksFor(t, h, worked)
	// One that goes on with its work is counted up to now, and to its end when it goes.
	c.Busy(0, true)
	time.Sleep(5 * time.Millisecond)
	if got := sees(t, h, 0).Ran - worked; got < 5*time.Millisecond {
		t.Errorf("%v of the period that goes on", got)
	}
	c.Page.DestroyQueue(0)
	c.Page.CreateQueue(0, 0, 1<<8)
	c.Ring()
	sessiontest.Await(t, "its next queue", func() bool { v, _ := h.Clients(context.Background()); return v[0].Queues[0].Generation == 3 })
	if got := sees(t, h, 0); got.Busy || got.Ran != 0 {
		t.Errorf("a new queue has the old one's state: %+v", got)
	}
	awaitQuiet(t, c, true)
}

// Busy time counts even if the program is delayed between reading the clock and writing the page, and
// if quiet ends before all of it is accounted.
func TestQuietTimeComesLate(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c) })
	c, other := h.Client(t, 0, wire.LevelBlock), h.Client(t, 0, wire.LevelBlock)
	c.Queue(0)
	awaitQuiet(t, c, true)
	var worked time.Duration
	for range 3 {
		begin := clock.Now()
		time.Sleep(100 * time.Millisecond)
		end := clock.Now()
		// On the loop, which has just seen it idle and sees nothing between the two.
		if err := h.Engine(context.Background(), func(*engine.Engine) {
			c.Page.SetBusy(0, true, begin)
			c.Page.SetBusy(0, false, end)
		}); err != nil {
			t.Fatal(err)
		}
		worked += end.Sub(begin)
		unquiet(t, h, c, other)
	}
	worksFor(t, h, worked)
}

// An invalid total of a client never adds more than the time that has passed.
func TestQuietNonsense(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 0, wire.LevelBlock)
	c.Queue(0)
	awaitQuiet(t, c, true)
	begin := time.Now()
	last := time.Duration(0)
	for range 500 {
		c.Page.SetBusy(0, rand.IntN(2) == 0, model.Time(rand.Uint64()))
		got := sees(t, h, 0).Ran
		if got < last || got > time.Since(begin)+time.Second {
			t.Fatalf("%v, then %v after %v", last, got, time.Since(begin))
		}
		last = got
	}
}
