// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
	"xsched/internal/policy"
)

func TestRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapidSource{t}
		m := newMachine(s, "", true)
		m.capped = s.pick("capped", 2) > 0
		m.run(1 + s.pick("steps", 60))
	})
}

var histories = flag.Int("histories", 300, "generated histories for each policy")

// historyCount is the number of histories to run: a sample with the race detector or
// -short.
func historyCount() uint64 {
	if raceEnabled || testing.Short() {
		return uint64(min(*histories, 300))
	}
	return uint64(*histories)
}

// TestHistories is TestRules for each policy, many times.
func TestHistories(t *testing.T) {
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(seed uint64) {
				s := seeded{rand.New(rand.NewPCG(seed, uint64(policy.Number(name)))), t, seed}
				m := newMachine(s, name, true)
				m.capped = seed%3 == 2 && seed < historyCount()
				m.run(1 + s.pick("steps", 40))
			}
			for seed := range historyCount() {
				run(seed)
			}
			// Seeds of earlier failures: turns prolonged by the wait before them, and
			// wake-ups for queues that waited no more.
			if seed, ok := map[string]uint64{"AWF": 12963, "HPF": 31515, "HHPF": 27879, "PUP": 27691, "SPUP": 37698}[name]; ok {
				run(seed)
			}
		})
	}
}

// TestParkedHistories is TestHistories with devices on which a third queue counts as a crowd.
func TestParkedHistories(t *testing.T) {
	was := parkAbove
	parkAbove = 2
	defer func() { parkAbove = was }()
	t.Run("policies", TestHistories)
	t.Run("devices", TestDevicesAreIndependent)
}

// FuzzHints: no hint that passes the check breaks a policy.
func FuzzHints(f *testing.F) {
	f.Add(0, 50, int64(5*ms), int64(20*ms), 2, int64(ms), -3, "g", int64(20*ms), 99.0, false)
	f.Add(-256, 100, int64(time.Second), int64(0), 0, int64(0), 19, "", int64(1), 1.0, true)
	f.Fuzz(func(t *testing.T, prio, util int, slice, deadline int64, k int, laxity int64, nice int, gang string, slo int64, p float64, perQueue bool) {
		h := model.Hint{
			Priority: model.Priority(prio), Utilization: util, Timeslice: time.Duration(slice), Deadline: time.Duration(deadline), K: k,
			Laxity: time.Duration(laxity), Nice: nice, Gang: gang, SLO: model.SLO{Latency: time.Duration(slo), Percentile: p}, PerQueue: perQueue,
		}
		if h.Check() != nil {
			return
		}
		for _, name := range policy.Names() {
			cfg := DefaultConfig()
			cfg.Policy = name
			e, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				q := model.Queue{ID: model.QueueID{Session: model.SessionID(i + 1)}, PID: i + 1, Level: model.LevelInterrupt, Slices: i > 0, Busy: true}
				if i < 2 {
					q.Hint = h
				}
				e.AddQueue(simStart, q)
			}
			now := simStart
			for range 20 {
				_, wake := e.Decide(now)
				if wake <= now {
					t.Fatalf("%s: wake %v is not after now", name, wake.Sub(now))
				}
				now = min(wake, now.Add(20*ms))
				e.SetBusy(now, model.QueueID{Session: 1}, now%2 == 0)
			}
		}
	})
}
