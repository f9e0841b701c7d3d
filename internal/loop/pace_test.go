// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// loopTime is the CPU time that the loop's thread has used.
func loopTime(t testing.TB, h *sessiontest.Fixture) time.Duration {
	t.Helper()
	var spent unix.Timespec
	var failed error
	err := h.Call(t.Context(), func() { failed = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent) })
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return time.Duration(spent.Nano())
}

// storm rings the doorbells of some clients continuously until stop is called.
func storm(clients []*sessiontest.Client, toggle bool, slots int) (stop func()) {
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for on := true; !over.Load(); on = !on {
			for _, c := range clients {
				for slot := range slots {
					if toggle {
						c.Page.SetBusy(slot, on, clock.Now())
					}
				}
				c.Ring()
			}
		}
	})
	return func() { over.Store(true); wg.Wait() }
}

// The rate limit keeps the loop available for other users, whatever the programs of one user ring for.
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
			h := sessiontest.Start(t, func(cfg *sessiontest.Config) { sessiontest.Users(cfg, uids...) })
			low, high := h.Client(t, -10, wire.LevelBlock), h.Client(t, 10, wire.LevelBlock)
			low.Queue(0)
			high.Queue(0)
			var bad []*sessiontest.Client
			for range c.clients {
				b := h.Client(t, -20, wire.LevelBlock)
				for slot := range c.slots {
					b.Page.CreateQueue(slot, 0, 1<<8)
				}
				b.Ring()
				bad = append(bad, b)
			}
			sessiontest.Await(t, "all are known", func() bool { return h.Loop.Stats().Queues == 2+c.clients*c.slots })
			low.Busy(0, true)
			stop := storm(bad, c.toggle, c.slots)
			defer stop()
			start, spent := time.Now(), loopTime(t, h)
			for range 10 {
				high.Busy(0, true)
				sessiontest.Await(t, "low is held", func() bool { return low.Held(0) })
				high.Busy(0, false)
				sessiontest.Await(t, "low runs", func() bool { return !low.Held(0) })
				time.Sleep(20 * time.Millisecond)
			}
			t.Logf("the loop took %.0f %% of a CPU", 100*float64(loopTime(t, h)-spent)/float64(time.Since(start)))
			var throttled uint64
			if err := h.Call(t.Context(), func() { throttled, _ = h.Throttled() }); err != nil || throttled == 0 {
				t.Errorf("no doorbell was throttled (%v)", err)
			}
		})
	}
}

// The loop reads the page of a throttled client again, even if the client never rings again.
func TestNothingIsLostByPacing(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, 1000, 1001) })
	low, high := h.Client(t, -10, wire.LevelBlock), h.Client(t, 10, wire.LevelBlock)
	low.Queue(0)
	high.Queue(0)
	sessiontest.Await(t, "both are known", func() bool { return h.Loop.Stats().Queues == 2 })
	low.Busy(0, true)
	for range 20 {
		for range 2000 {
			high.Busy(0, true)
			high.Busy(0, false)
		}
		high.Busy(0, true)
		sessiontest.Await(t, "low is held", func() bool { return low.Held(0) })
		for range 2000 {
			high.Busy(0, false)
			high.Busy(0, true)
		}
		high.Busy(0, false)
		sessiontest.Await(t, "low runs", func() bool { return !low.Held(0) })
	}
	// Nor does an end in that state leave anything behind.
	stop := storm([]*sessiontest.Client{high}, true, 1)
	sessiontest.Await(t, "throttled", func() bool {
		throttled := 0
		_ = h.Call(t.Context(), func() { _, throttled = h.Throttled() })
		return throttled > 0
	})
	stop()
	_ = high.Conn.Close()
	sessiontest.Await(t, "it has gone", func() bool { return h.Server.Stats().Sessions == 1 })
	sessiontest.Await(t, "its place is free", func() bool {
		left := -1
		_ = h.Call(t.Context(), func() { _, throttled := h.Throttled(); left = throttled + h.Accounts() })
		return left == 1 // the account of the other
	})
}
