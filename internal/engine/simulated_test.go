// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"xsched/internal/model"
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

// TestPeriodicHigh: a periodic high leaves the lows equal parts, even if the gap
// between two of its bursts is slightly longer than a quantum.
func TestPeriodicHigh(t *testing.T) {
	for _, name := range []string{"HPF", "HHPF", "CHPF", "AWF"} {
		for _, gap := range []time.Duration{20 * ms, 51 * ms, 54 * ms, 60 * ms, 104 * ms, 170 * ms} {
			for lows := 2; lows <= 4; lows++ {
				cfg := DefaultConfig()
				cfg.Policy, cfg.Mode, cfg.StarvationBound = name, model.ModeSuspend, 0
				tenants := []*tenant{tenantOf(10, 20*ms, gap)}
				tenants[0].q.Hint.Nice = -10
				for range lows {
					tenants = append(tenants, saturating(model.Hint{}))
				}
				g := newGPU(t, cfg, tenants...)
				g.delay = 400 * us
				g.run(20 * time.Second)
				least, most := time.Hour, time.Duration(0)
				for _, p := range tenants[1:] {
					least, most = min(least, p.ran), max(most, p.ran)
				}
				if least < most*9/10 {
					t.Errorf("%s, every %v, %d lows: one has %v, another %v", name, 20*ms+gap, lows, least, most)
				}
			}
		}
	}
}

// TestOneHighThreeLows is the case of the demo: 0.09 ms every 10 ms beside 20 ms
// kernels, with suspends and resumes as slow as measured.
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
