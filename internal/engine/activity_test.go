// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"xsched/internal/model"
)

func TestWatch(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Mode, cfg.Hold = model.ModeSuspend, 0
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	e.Watch(func(tr Transition) {
		fmt.Fprintf(&got, "%d: %d to %d by %d gone %v\n", tr.At/model.Time(time.Millisecond), tr.PID, tr.To, tr.By, tr.Gone)
	})
	ms := func(n int) model.Time { return model.Time(n) * model.Time(time.Millisecond) }
	low, high := model.QueueID{Session: 1}, model.QueueID{Session: 2}
	e.AddQueue(ms(1), model.Queue{ID: low, PID: 10, Device: 1, Level: model.LevelInterrupt, Hint: model.Hint{Priority: -10}})
	e.AddQueue(ms(1), model.Queue{ID: high, PID: 20, Device: 1, Level: model.LevelInterrupt, Hint: model.Hint{Priority: 10}})
	e.Decide(ms(1))
	e.SetBusy(ms(2), low, true)
	e.Decide(ms(2))
	e.SetBusy(ms(5), high, true)
	e.Decide(ms(5))
	e.SetBusy(ms(8), high, false)
	e.Decide(ms(8))
	e.SetHeld(ms(9), 10, true)
	e.Decide(ms(9))
	e.RemoveQueue(ms(10), low)
	want := `2: 10 to 1 by 0 gone false
5: 20 to 1 by 0 gone false
5: 10 to 3 by 20 gone false
8: 20 to 0 by 0 gone false
8: 10 to 1 by 0 gone false
9: 10 to 3 by -1 gone false
10: 10 to 0 by 0 gone true
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

// A watcher costs the engine no allocation.
func TestWatchDoesNotAllocate(t *testing.T) {
	measure := func(watch bool) float64 {
		e, err := New(DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		if watch {
			e.Watch(func(Transition) { seen++ })
		}
		for i := range 8 {
			e.AddQueue(1, model.Queue{ID: model.QueueID{Session: model.SessionID(i)}, PID: 10 + i, Device: 1, Level: model.LevelInterrupt})
		}
		now, busy := model.Time(2), false
		return testing.AllocsPerRun(500, func() {
			busy = !busy
			now += model.Time(time.Millisecond)
			e.SetBusy(now, model.QueueID{Session: 3}, busy)
			e.Decide(now)
		})
	}
	if without, with := measure(false), measure(true); with > without {
		t.Errorf("%v allocations per decision, %v without a watcher", with, without)
	}
}
