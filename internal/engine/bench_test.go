// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// BenchmarkDecide1000 alternates one high-priority queue between idle and busy
// among 1,000 queues of which all others have work. The budget is 50 us per
// decision, as the median: the machine may preempt the benchmark.
func BenchmarkDecide1000(b *testing.B) {
	level := func(l model.Level) func(*Config) {
		return func(c *Config) { c.Mode, c.ForceLevel = model.ModeLevel, l }
	}
	type setup struct {
		name    string
		config  func(*Config)
		devices int
		prio    model.Priority // of the one that changes
	}
	setups := []setup{
		{"HPF-level1", level(model.LevelBlock), 1, 10},
		{"HPF-equal", func(*Config) {}, 1, 0},
		{"HPF-8-devices", func(*Config) {}, 8, 10},
		{"off", func(c *Config) { c.Mode = model.ModeOff }, 1, 10},
	}
	for _, name := range policy.Names() {
		for _, mode := range []model.Mode{model.ModeLive, model.ModeSuspend, model.ModeTimeslice} {
			setups = append(setups, setup{name + "-" + string(mode), func(c *Config) { c.Policy, c.Mode = name, mode }, 1, 10})
		}
	}
	for _, c := range setups {
		b.Run(c.name, func(b *testing.B) {
			e, high := thousand(b, c.config, c.devices, c.prio)
			now, busy := model.Time(time.Hour), false
			var took []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				now += model.Time(time.Millisecond)
				busy = !busy
				start := time.Now()
				e.SetBusy(now, high, busy)
				e.Decide(now)
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "P50-us")
			if e.Stats().Decisions == 0 {
				b.Fatal("nothing was decided")
			}
		})
	}
}

// TestDecideAllocations: a decision allocates its plan and a few scratch slices,
// however many queues there are.
func TestDecideAllocations(t *testing.T) {
	for _, name := range policy.Names() {
		for _, queues := range []int{10, 3000} {
			e, high := crowd(t, queues, func(c *Config) { c.Policy = name }, 1, 10)
			now, busy := model.Time(time.Hour), false
			allocs := testing.AllocsPerRun(20, func() {
				now += model.Time(time.Millisecond)
				busy = !busy
				e.SetBusy(now, high, busy)
				e.Decide(now)
			})
			if allocs > 8 {
				t.Errorf("%s: %v allocations per decision among %d queues", name, allocs, queues)
			}
		}
	}
}

// BenchmarkDecide10000 is a device with ten times as many queues, where the
// daemon must still answer within a heartbeat.
func BenchmarkDecide10000(b *testing.B) {
	for _, name := range policy.Names() {
		b.Run(name, func(b *testing.B) {
			e, high := crowd(b, 10000, func(c *Config) { c.Policy = name }, 1, 10)
			now, busy := model.Time(time.Hour), false
			for b.Loop() {
				now, busy = now.Add(time.Millisecond), !busy
				e.SetBusy(now, high, busy)
				e.Decide(now)
			}
		})
	}
}

func thousand(t testing.TB, change func(*Config), devices int, prio model.Priority) (*Engine, model.QueueID) {
	t.Helper()
	return crowd(t, 1000, change, devices, prio)
}

func crowd(t testing.TB, n int, change func(*Config), devices int, prio model.Priority) (*Engine, model.QueueID) {
	t.Helper()
	cfg := DefaultConfig()
	change(&cfg)
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	high := model.QueueID{Session: model.SessionID(n / 2)}
	for i := range n {
		q := model.Queue{
			ID: model.QueueID{Session: model.SessionID(i)}, PID: 1000 + i, Device: model.DeviceID(i % devices),
			Level: model.LevelInterrupt, Slices: true,
			Hint: model.Hint{Utilization: 1 + i%100, Deadline: time.Duration(1+i%7) * time.Second, K: 4},
		}
		if q.ID == high {
			q.Hint = model.Hint{
				Priority: prio, Utilization: 50, Deadline: time.Millisecond, Laxity: time.Millisecond, CriticalPriority: 9,
				WindowActive: true, Nice: -5, SLO: model.SLO{Latency: time.Millisecond},
			}
		}
		e.AddQueue(0, q)
		if q.ID != high {
			e.SetBusy(model.Time(i), q.ID, true)
		}
	}
	e.Decide(model.Time(time.Second))
	return e, high
}
