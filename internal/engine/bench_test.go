// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// BenchmarkDecide1000 alternates one high queue between idle and busy among
// 1,000 queues of which all others have work. The budget is 5 us a decision.
func BenchmarkDecide1000(b *testing.B) {
	level := func(l model.Level) func(*Config) {
		return func(c *Config) { c.Mode, c.ForceLevel = model.ModeLevel, l }
	}
	for _, c := range []struct {
		name    string
		config  func(*Config)
		devices int
		prio    model.Priority // of the one that changes
	}{
		{"HPF", func(*Config) {}, 1, 10},
		{"HPF-suspend", func(c *Config) { c.Mode = model.ModeSuspend }, 1, 10},
		{"HPF-level1", level(model.LevelBlock), 1, 10},
		{"HPF-equal", func(*Config) {}, 1, 0},
		{"HPF-timeslice", func(c *Config) { c.Mode = model.ModeTimeslice }, 1, 10},
		{"HPF-8-devices", func(*Config) {}, 8, 10},
		{"FIFO", func(c *Config) { c.Policy = "FIFO" }, 1, 10},
		{"off", func(c *Config) { c.Mode = model.ModeOff }, 1, 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			e, high := thousand(b, c.config, c.devices, c.prio)
			now, busy := model.Time(time.Hour), false
			b.ReportAllocs()
			for b.Loop() {
				now += model.Time(time.Millisecond)
				busy = !busy
				e.SetBusy(now, high, busy)
				e.Decide(now)
			}
			if e.Stats().Decisions == 0 {
				b.Fatal("nothing was decided")
			}
		})
	}
}

// TestDecideDoesNotAllocate holds the steady state to zero allocations.
func TestDecideDoesNotAllocate(t *testing.T) {
	for _, name := range []string{"HPF", "FIFO"} {
		e, high := thousand(t, func(c *Config) { c.Policy = name }, 2, 10)
		now, busy := model.Time(time.Hour), false
		allocs := testing.AllocsPerRun(500, func() {
			now += model.Time(time.Millisecond)
			busy = !busy
			e.SetBusy(now, high, busy)
			e.Decide(now)
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations a decision", name, allocs)
		}
	}
}

func thousand(t testing.TB, change func(*Config), devices int, prio model.Priority) (*Engine, model.QueueID) {
	t.Helper()
	cfg := DefaultConfig()
	change(&cfg)
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	high := model.QueueID{Session: 500}
	for i := range 1000 {
		q := model.Queue{
			ID: model.QueueID{Session: model.SessionID(i)}, PID: 1000 + i, Device: model.DeviceID(i % devices),
			Level: model.LevelInterrupt, Slices: true,
		}
		if q.ID == high {
			q.Hint.Priority = prio
		}
		e.AddQueue(0, q)
		if q.ID != high {
			e.SetBusy(model.Time(i), q.ID, true)
		}
	}
	e.Decide(model.Time(time.Second))
	return e, high
}
