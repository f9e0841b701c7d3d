// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
	"xsched/internal/policy"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

func tenantOf(prio model.Priority, burst, gap time.Duration) *tenant {
	return &tenant{
		q:     model.Queue{Hint: model.Hint{Priority: prio}, Level: model.LevelInterrupt, Slices: true},
		burst: []time.Duration{burst}, gap: []time.Duration{gap},
	}
}

// TestStarvationBound lets random programs share a device under every policy and every mode
// that schedules, and holds the guard to its promise.
func TestStarvationBound(t *testing.T) {
	modes := []model.Mode{model.ModeTimeslice, model.ModeSuspend, model.ModeLevel, model.ModeLive}
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.Policy = rapid.SampledFrom(policy.Names()).Draw(t, "policy")
		cfg.Mode = rapid.SampledFrom(modes).Draw(t, "mode")
		cfg.ForceLevel = model.LevelInterrupt
		cfg.Quantum = rapid.SampledFrom([]time.Duration{20 * ms, 50 * ms}).Draw(t, "quantum")
		cfg.StarvationBound = rapid.SampledFrom([]time.Duration{200 * ms, 500 * ms}).Draw(t, "bound")
		n := rapid.IntRange(2, 6).Draw(t, "tenants")
		tenants := make([]*tenant, n)
		for i := range tenants {
			p := tenantOf(model.Priority(rapid.IntRange(-2, 2).Draw(t, "priority")), 0, 0)
			p.burst = rapid.SliceOfN(genTime(100*us, 3*ms, 300*ms, 5*time.Second), 1, 3).Draw(t, "burst")
			p.gap = rapid.SliceOfN(genTime(10*us, 50*us, 300*us, 700*us, 5*ms), 1, 3).Draw(t, "gap")
			p.q.Slices = rapid.IntRange(0, 4).Draw(t, "slices") > 0
			tenants[i] = p
		}
		g := newGPU(t, cfg, tenants...)
		g.run(4 * time.Second)

		round := time.Duration(2*n) * cfg.Quantum
		promise := max(cfg.StarvationBound, round) + round
		// A grant is shared with the others: one round of their slices until it works.
		slack := time.Duration(n) * 10 * ms
		for i, p := range tenants {
			if p.worst > promise+slack {
				t.Fatalf("tenant %d (priority %d) had nothing for %v, promised %v; %s", i+1, p.q.Hint.Priority, p.worst, promise, g.e)
			}
		}
	})
}

func genTime(of ...time.Duration) *rapid.Generator[time.Duration] { return rapid.SampledFrom(of) }

// TestInversionBound: where priorities count a lower tenant works while a higher one is ready
// for a switch at most, and where the starvation bound says so for one quantum.
func TestInversionBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.Policy = rapid.SampledFrom([]string{"HPF", "HHPF", "CHPF", "AWF", "LAX"}).Draw(t, "policy")
		cfg.Mode = rapid.SampledFrom([]model.Mode{model.ModeLive, model.ModeSuspend}).Draw(t, "mode")
		cfg.StarvationBound = rapid.SampledFrom([]time.Duration{0, 300 * ms}).Draw(t, "bound")
		n := rapid.IntRange(1, 4).Draw(t, "lows")
		tenants := []*tenant{tenantOf(10, 0, 0)}
		for range n {
			tenants = append(tenants, tenantOf(model.Priority(rapid.IntRange(-1, 1).Draw(t, "priority")), 0, 0))
		}
		for _, p := range tenants {
			p.burst = rapid.SliceOfN(genTime(100*us, 3*ms, 300*ms), 1, 3).Draw(t, "burst")
			p.gap = rapid.SliceOfN(genTime(10*us, 700*us, 5*ms), 1, 3).Draw(t, "gap")
			p.q.Hint.Nice = -int(p.q.Hint.Priority) // the same order for CHPF
		}
		g := newGPU(t, cfg, tenants...)
		g.run(3 * time.Second)
		allowed := 500 * us // one switch, and another for one that is higher still and comes meanwhile
		if cfg.StarvationBound > 0 {
			allowed += cfg.Quantum
		}
		if g.worstInversion > allowed {
			t.Fatalf("inverted for %v", g.worstInversion)
		}
	})
}

// TestOneHighThreeLows is the demo's case: 0.09 ms every 10 ms beside 20 ms kernels, with the
// stops and continues as slow as they were measured.
func TestOneHighThreeLows(t *testing.T) {
	for _, c := range []struct {
		mode         model.Mode
		lows         int
		slowest      time.Duration // P99 of the high
		keep         float64       // of the chip, for the lows
		worseThan    time.Duration
		preemptions  bool
		hardwareOnly bool
	}{
		{mode: model.ModeOff, lows: 1, slowest: 3 * ms, keep: 0.93, worseThan: 1500 * us},
		{mode: model.ModeOff, lows: 3, slowest: 9 * ms, keep: 0.80, worseThan: 3500 * us},
		{mode: model.ModeLive, lows: 1, slowest: 400 * us, keep: 0.93, hardwareOnly: true},
		{mode: model.ModeLive, lows: 3, slowest: 1090 * us, keep: 0.93, preemptions: true},
		{mode: model.ModeSuspend, lows: 1, slowest: 1090 * us, keep: 0.80, preemptions: true},
		{mode: model.ModeSuspend, lows: 3, slowest: 1090 * us, keep: 0.80, preemptions: true},
	} {
		t.Run(fmt.Sprintf("%s-%d", c.mode, c.lows), func(t *testing.T) {
			high := tenantOf(10, 90*us, 0)
			high.gap = []time.Duration{9370 * us, 8810 * us, 10430 * us, 9030 * us, 10990 * us} // out of step with the slices
			tenants := []*tenant{high}
			for range c.lows {
				tenants = append(tenants, tenantOf(0, 20*ms, 60*us))
			}
			cfg := DefaultConfig()
			cfg.Mode = c.mode
			g := newGPU(t, cfg, tenants...)
			g.delay = 600 * us
			const length = 5 * time.Second
			g.run(length)

			var low time.Duration
			for _, p := range tenants[1:] {
				low += p.ran
				if share := float64(p.ran) / float64(length); share < 0.7/float64(c.lows) && c.mode != model.ModeSuspend {
					t.Errorf("a low got %.3f of the chip", share)
				}
			}
			slices.Sort(high.latency)
			p99 := high.latency[len(high.latency)*99/100]
			keep := float64(low) / float64(length)
			st := g.e.Stats()
			t.Logf("P50 %v P99 %v, lows %.3f, %+v", high.latency[len(high.latency)/2], p99, keep, st)
			if p99 > c.slowest || p99 < c.worseThan {
				t.Errorf("P99 of the high %v", p99)
			}
			if keep < c.keep {
				t.Errorf("the lows keep %.3f", keep)
			}
			if stops := st.Preemptions[model.LevelInterrupt]; (stops > 0) != c.preemptions {
				t.Errorf("%d stops", stops)
			}
			if c.hardwareOnly && st.Yields < 450 {
				t.Errorf("%d yields for 500 requests", st.Yields)
			}
		})
	}
}
