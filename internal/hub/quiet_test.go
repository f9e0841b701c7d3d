// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/wire"
)

// sees returns how the hub sees the first queue of the nth session.
func (f *fixture) sees(t testing.TB, n int) QueueView {
	t.Helper()
	v, err := f.Sessions(context.Background())
	if err != nil || len(v) <= n || len(v[n].Queues) == 0 {
		t.Fatalf("%+v %v", v, err)
	}
	return v[n].Queues[0]
}

func (f *fixture) awaitQuiet(t testing.TB, c *client, want bool) {
	t.Helper()
	await(t, "quiet or not", func() bool { return c.page.Quiet(0) == want })
}

// A program by itself rings for nothing, and is seen all the same; the first decision about a second
// one knows what it does.
func TestQuietWhileAlone(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { strangers(c) })
	low := h.join(t, -10, wire.LevelBlock)
	low.queue(0)
	h.awaitQuiet(t, low, true)
	rings := h.Stats().Rings
	for range 1000 {
		low.busy(0, true)
		low.busy(0, false)
	}
	low.busy(0, true)
	if got := h.Stats().Rings; got != rings {
		t.Errorf("%d rings while quiet", got-rings)
	}
	if q := h.sees(t, 0); !q.Busy || q.Transitions != 2001 {
		t.Errorf("busy %v after %d changes", q.Busy, q.Transitions)
	}
	high := h.join(t, 10, wire.LevelBlock)
	high.page.SetBusy(0, true, clock.Now()) // it comes with work
	high.page.CreateQueue(0, 0, 1<<8)
	high.page.SetBusy(0, true, clock.Now())
	high.ring()
	await(t, "low is held", func() bool { return low.held(0) })
	if low.page.Quiet(0) || high.page.Quiet(0) {
		t.Error("quiet beside another")
	}
	if q := h.sees(t, 0); q.Preemptions != 1 {
		t.Errorf("%d preemptions: its work was not known", q.Preemptions)
	}
	high.close()
	await(t, "low runs", func() bool { return !low.held(0) })
	h.awaitQuiet(t, low, true)
}

// What makes each change count ends the quiet, and its end begins it again.
func TestQuietEnds(t *testing.T) {
	ctx, pid := context.Background(), os.Getpid()
	hint := func(change func(*model.Hint)) func(h *fixture) error {
		return func(h *fixture) error {
			_, err := h.SetHint(ctx, pid, false, func(_ SessionView, hint *model.Hint) error { change(hint); return nil })
			return err
		}
	}
	for name, c := range map[string]struct{ on, off func(h *fixture) error }{
		"held": {
			func(h *fixture) error { return h.SetHeld(ctx, pid, true) },
			func(h *fixture) error { return h.SetHeld(ctx, pid, false) },
		},
		"target": {
			hint(func(h *model.Hint) { h.SLO.Latency = time.Millisecond }),
			hint(func(h *model.Hint) { h.SLO.Latency = 0 }),
		},
		"gang": {
			hint(func(h *model.Hint) { h.Gang = "g" }),
			hint(func(h *model.Hint) { h.Gang = "" }),
		},
		"share": {
			hint(func(h *model.Hint) { h.Utilization = 20 }),
			hint(func(h *model.Hint) { h.Utilization = 0 }),
		},
		"observed": {
			func(h *fixture) error {
				return h.Engine(ctx, func(e *engine.Engine) { e.Observe(func(*engine.Event) {}) })
			},
			func(h *fixture) error {
				return h.Engine(ctx, func(e *engine.Engine) { e.Observe(nil) })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHub(t, nil)
			cl := h.join(t, 0, wire.LevelBlock)
			cl.queue(0)
			h.awaitQuiet(t, cl, true)
			cl.busy(0, true)
			if err := c.on(h); err != nil {
				t.Fatal(err)
			}
			h.awaitQuiet(t, cl, false)
			if !h.sees(t, 0).Busy {
				t.Error("its work is not known")
			}
			if err := c.off(h); err != nil {
				t.Fatal(err)
			}
			h.awaitQuiet(t, cl, true)
		})
	}
	t.Run("stream of its own", func(t *testing.T) {
		h := startHub(t, nil)
		cl := h.join(t, 0, wire.LevelBlock)
		cl.queue(0)
		h.awaitQuiet(t, cl, true)
		cl.page.CreateStream(1, 0, 1<<8, 0)
		cl.ring()
		h.awaitQuiet(t, cl, false)
		cl.page.DestroyQueue(1)
		cl.ring()
		h.awaitQuiet(t, cl, true)
		cl.page.CreateQueue(1, 0, 2<<8) // on another GPU
		cl.ring()
		await(t, "both are known", func() bool { return h.Stats().Queues == 2 })
		await(t, "both quiet", func() bool { return cl.page.Quiet(0) && cl.page.Quiet(1) })
	})
}

// A recording has every change in it.
func TestNeverQuietWhileRecording(t *testing.T) {
	log, err := record.Create(t.TempDir()+"/r", record.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	h := startHub(t, func(c *Config, _ *engine.Config) { c.Recorder = log })
	c := h.join(t, 0, wire.LevelBlock)
	c.queue(0)
	for i := range 50 {
		c.busy(0, i%2 == 0)
		await(t, "the change is seen", func() bool { return h.sees(t, 0).Transitions == uint64(i+1) })
		if c.page.Quiet(0) {
			t.Fatal("quiet")
		}
	}
}

// A program hammers while another one's queue comes, and stops as soon as it is listened to: from
// then on nobody reads its page without a ring, so that a change lost in between would stay lost.
func TestQuietLosesNothing(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { strangers(c) })
	first, second := h.join(t, 0, wire.LevelBlock), h.join(t, 0, wire.LevelBlock)
	first.queue(0)
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		h.awaitQuiet(t, first, true)
		begun, hammered := first.page.Page.Queue(0).Transitions, make(chan struct{})
		go func() {
			for n := 0; first.page.Quiet(0); n++ {
				first.busy(0, n%2 == 0)
				for pause := clock.Now() + 500; clock.Now() < pause; {
					// So that its last change most likely is a silent one.
				}
			}
			close(hammered)
		}()
		await(t, "it hammers", func() bool { return first.page.Page.Queue(0).Transitions > begun })
		second.queue(0)
		<-hammered
		is := first.page.Page.Queue(0)
		await(t, "the last change is known", func() bool { return h.sees(t, 0).Transitions == is.Transitions })
		if got := h.sees(t, 0).Busy; got != is.Busy() {
			t.Fatalf("busy %v, is %v", got, is.Busy())
		}
		first.busy(0, false)
		second.page.DestroyQueue(0)
		second.ring()
	}
}

// worksFor is how the account of the first client ends, once it is idle: what is held back because it came
// late is in it after as much time.
func (f *fixture) worksFor(t testing.TB, want time.Duration) {
	t.Helper()
	var ran, gpu time.Duration
	for end := time.Now().Add(10 * time.Second); ran != want || gpu != want; time.Sleep(time.Millisecond) {
		times, err := f.GPUTimes(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if ran, gpu = f.sees(t, 0).Ran, times[testGPU]; ran > want || gpu > want || time.Now().After(end) {
			t.Fatalf("worked for %v, seen %v, GPU for %v", want, ran, gpu)
		}
	}
}

// unquiet ends the quiet of a client and lets it begin again.
func (f *fixture) unquiet(t testing.TB, c, other *client) {
	t.Helper()
	other.queue(0)
	f.awaitQuiet(t, c, false)
	other.page.DestroyQueue(0)
	other.ring()
	f.awaitQuiet(t, c, true)
}

// The time a quiet program worked is what it worked, however short its periods, and however
// often quiet begins and ends meanwhile.
func TestQuietTimeIsExact(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { strangers(c) })
	c, other := h.join(t, 0, wire.LevelBlock), h.join(t, 0, wire.LevelBlock)
	c.queue(0)
	h.awaitQuiet(t, c, true)
	var worked time.Duration
	period := func(length time.Duration) (end model.Time) {
		begin := clock.Now()
		c.page.SetBusy(0, true, begin)
		end = clock.Now().Add(length)
		c.page.SetBusy(0, false, end)
		worked += end.Sub(begin)
		return end
	}
	for i := range 20000 {
		period(0)
		if i == 10000 { // idle, so that nothing is added while it rings
			h.unquiet(t, c, other)
		}
	}
	// Held up between looking at the clock and writing an end, the program seems to go on, and as much of its
	// next periods has been counted. So one follows that is longer than that and says its end in time.
	for length := 10 * time.Millisecond; ; length *= 2 {
		seen := h.sees(t, 0).Ran
		if end := period(length); clock.Now() <= end && seen <= worked {
			break
		}
	}
	h.worksFor(t, worked)
	// One that goes on with its work is counted up to now, and to its end when it goes.
	c.busy(0, true)
	time.Sleep(5 * time.Millisecond)
	if got := h.sees(t, 0).Ran - worked; got < 5*time.Millisecond {
		t.Errorf("%v of the period that goes on", got)
	}
	c.page.DestroyQueue(0)
	c.page.CreateQueue(0, 0, 1<<8)
	c.ring()
	await(t, "its next queue", func() bool { v, _ := h.Sessions(context.Background()); return v[0].Queues[0].Generation == 3 })
	if got := h.sees(t, 0); got.Busy || got.Ran != 0 {
		t.Errorf("a new queue has the old one's state: %+v", got)
	}
	h.awaitQuiet(t, c, true)
}

// A program that is held up between looking at the clock and writing the page says late what it did. That
// counts too, also when its quiet ends before all of it can be believed.
func TestQuietTimeComesLate(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { strangers(c) })
	c, other := h.join(t, 0, wire.LevelBlock), h.join(t, 0, wire.LevelBlock)
	c.queue(0)
	h.awaitQuiet(t, c, true)
	var worked time.Duration
	for range 3 {
		begin := clock.Now()
		time.Sleep(100 * time.Millisecond)
		end := clock.Now()
		// On the loop, which has just seen it idle and sees nothing between the two.
		if err := h.Engine(context.Background(), func(*engine.Engine) {
			c.page.SetBusy(0, true, begin)
			c.page.SetBusy(0, false, end)
		}); err != nil {
			t.Fatal(err)
		}
		worked += end.Sub(begin)
		h.unquiet(t, c, other)
	}
	h.worksFor(t, worked)
}

// What a client adds up is its own claim: nonsense never is more than the time that passed.
func TestQuietNonsense(t *testing.T) {
	h := startHub(t, nil)
	c := h.join(t, 0, wire.LevelBlock)
	c.queue(0)
	h.awaitQuiet(t, c, true)
	begin := time.Now()
	last := time.Duration(0)
	for range 500 {
		c.page.SetBusy(0, rand.IntN(2) == 0, model.Time(rand.Uint64()))
		got := h.sees(t, 0).Ran
		if got < last || got > time.Since(begin)+time.Second {
			t.Fatalf("%v, then %v after %v", last, got, time.Since(begin))
		}
		last = got
	}
}
