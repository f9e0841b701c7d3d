// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/engine"
	"xsched/internal/wire"
)

// loopTime is the CPU time that the loop's thread has used.
func loopTime(t testing.TB, h *fixture) time.Duration {
	t.Helper()
	var spent unix.Timespec
	var failed error
	err := h.call(h.ctx, func(*loop) { failed = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent) })
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return time.Duration(spent.Nano())
}

// storm rings for some clients as often as it can until it is stopped.
func storm(clients []*client, toggle bool, slots int) (stop func()) {
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for on := true; !over.Load(); on = !on {
			for _, c := range clients {
				for slot := range slots {
					if toggle {
						c.page.SetBusy(slot, on, clock.Now())
					}
				}
				c.ring()
			}
		}
	})
	return func() { over.Store(true); wg.Wait() }
}

// A user who rings all the time gets a quarter of the loop's time in the long run, whatever one
// ring costs, and each window hears a first ring again once the debt is paid.
func TestShareOfTheLoop(t *testing.T) {
	const windows = 10000
	for _, cost := range []time.Duration{time.Microsecond, 20 * time.Microsecond, 200 * time.Microsecond, 2 * time.Millisecond} {
		a := &account{}
		var spent time.Duration
		heard := 0
		for w := uint64(1); w <= windows; w++ {
			for range 2 * paceWindow / min(cost, paceWindow) { // more than fits
				if a.admit(w) {
					a.spend(cost)
					spent += cost
					heard++
				}
			}
		}
		share := float64(spent) / float64(windows*paceWindow)
		t.Logf("rings of %v: %d heard, %.3f of the time", cost, heard, share)
		// What one ring costs beyond paceDebt is not remembered.
		most := 0.25 * max(1, float64(cost)/float64(paceDebt)) * 1.2
		if share > most || share < 0.2 {
			t.Errorf("rings of %v take %.3f of the loop, want at most %.3f and a quarter at least nearly", cost, share, most)
		}
	}
}

// However often a user's programs ring, whatever they ring for, and however many they are: the loop is
// not theirs, and others are served.
func TestDoorbellsHaveAShare(t *testing.T) {
	for name, c := range map[string]struct {
		clients, slots int
		toggle         bool
	}{
		"one that says nothing":  {1, 1, false},
		"one that changes":       {1, 1, true},
		"one with many queues":   {1, 256, true},
		"many that say nothing":  {40, 1, false},
		"many that change a lot": {40, 4, true},
	} {
		t.Run(name, func(t *testing.T) {
			uids := []int{0, 0}
			for range c.clients {
				uids = append(uids, 1000)
			}
			h := startHub(t, func(cfg *Config, _ *engine.Config) { users(cfg, uids...) })
			low, high := h.join(t, -10, wire.LevelBlock), h.join(t, 10, wire.LevelBlock)
			low.queue(0)
			high.queue(0)
			var bad []*client
			for range c.clients {
				b := h.join(t, -20, wire.LevelBlock)
				for slot := range c.slots {
					b.page.CreateQueue(slot, 0, 1<<8)
				}
				b.ring()
				bad = append(bad, b)
			}
			await(t, "all are known", func() bool { return h.Stats().Queues == 2+c.clients*c.slots })
			low.busy(0, true)
			stop := storm(bad, c.toggle, c.slots)
			defer stop()
			start, spent := time.Now(), loopTime(t, h)
			for range 10 {
				high.busy(0, true)
				await(t, "low is held", func() bool { return low.held(0) })
				high.busy(0, false)
				await(t, "low runs", func() bool { return !low.held(0) })
				time.Sleep(20 * time.Millisecond)
			}
			t.Logf("the loop took %.0f %% of a CPU", 100*float64(loopTime(t, h)-spent)/float64(time.Since(start)))
			var deafened uint64
			if err := h.call(h.ctx, func(l *loop) { deafened = l.deafened }); err != nil || deafened == 0 {
				t.Errorf("nobody was ever not listened to (%v)", err)
			}
		})
	}
}

// One that rang too often is heard again, as it is by then, also if it never rings again.
func TestNothingIsLostByPacing(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { users(c, 1000, 1001) })
	low, high := h.join(t, -10, wire.LevelBlock), h.join(t, 10, wire.LevelBlock)
	low.queue(0)
	high.queue(0)
	await(t, "both are known", func() bool { return h.Stats().Queues == 2 })
	low.busy(0, true)
	for range 20 {
		for range 2000 {
			high.busy(0, true)
			high.busy(0, false)
		}
		high.busy(0, true)
		await(t, "low is held", func() bool { return low.held(0) })
		for range 2000 {
			high.busy(0, false)
			high.busy(0, true)
		}
		high.busy(0, false)
		await(t, "low runs", func() bool { return !low.held(0) })
	}
	// Nor does an end in that state leave anything behind.
	stop := storm([]*client{high}, true, 1)
	await(t, "it is not listened to", func() bool {
		deaf := 0
		_ = h.call(h.ctx, func(l *loop) { deaf = len(l.deaf) })
		return deaf > 0
	})
	stop()
	_ = high.conn.Close()
	await(t, "it has gone", func() bool { return h.Stats().Sessions == 1 })
	await(t, "its place is free", func() bool {
		left := -1
		_ = h.call(h.ctx, func(l *loop) { left = len(l.deaf) + len(l.accounts) })
		return left == 1 // the account of the other
	})
}
