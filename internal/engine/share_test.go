// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math"
	"testing"
	"time"

	"xsched/internal/model"
)

// saturating is a tenant that always has work.
func saturating(hint model.Hint) *tenant {
	p := tenantOf(0, time.Hour, time.Hour)
	p.q.Hint = hint
	return p
}

// TestShares holds what saturating tenants get to what they asked for, where the hardware
// divides the device and where turns do.
func TestShares(t *testing.T) {
	for _, name := range []string{"UP", "PUP", "SPUP", "CFS"} {
		for _, mode := range []model.Mode{model.ModeLive, model.ModeTimeslice, model.ModeSuspend} {
			for _, shares := range [][]int{{75, 25}, {90, 10}, {50, 50}, {50, 30, 20}, {100, 1}, {25, 25, 25, 25}} {
				t.Run(fmt.Sprintf("%s-%s-%v", name, mode, shares), func(t *testing.T) {
					cfg := DefaultConfig()
					cfg.Policy, cfg.Mode = name, mode
					sum, tenants := 0, []*tenant{}
					for _, s := range shares {
						tenants = append(tenants, saturating(model.Hint{Utilization: s}))
						sum += s
					}
					g := newGPU(t, cfg, tenants...)
					length := 60 * time.Second
					g.run(length)
					var all time.Duration
					for _, p := range tenants {
						all += p.ran
					}
					if kept := float64(all) / float64(length); kept < 0.95 {
						t.Errorf("kept %.3f of the chip", kept)
					}
					for i, p := range tenants {
						want := float64(shares[i]) / float64(sum)
						got := float64(p.ran) / float64(all)
						if name == "SPUP" && mode != model.ModeTimeslice {
							got = float64(p.ran) / float64(length)
							want = min(want, float64(shares[i])/100)
						}
						slack := 0.03
						if name == "SPUP" {
							slack = 0.05 // what switching costs counts as had
						}
						if math.Abs(got-want) > slack*want+0.004 {
							t.Errorf("tenant %d has %.4f of the chip, wants %.4f", i, got, want)
						}
					}
				})
			}
		}
	}
}

// TestIdleShares: what an idle tenant does not use the others have, except under SPUP.
func TestIdleShares(t *testing.T) {
	for _, c := range []struct {
		policy   string
		mode     model.Mode
		least    float64 // of the chip, for the one that works
		noneOver float64
	}{
		{"UP", model.ModeLive, 0.99, 1},
		{"UP", model.ModeSuspend, 0.99, 1},
		{"PUP", model.ModeLive, 0.99, 1},
		{"PUP", model.ModeSuspend, 0.99, 1},
		{"CFS", model.ModeLive, 0.99, 1},
		{"CFS", model.ModeSuspend, 0.99, 1},
		{"RR", model.ModeLive, 0.99, 1},
		{"RR", model.ModeSuspend, 0.99, 1},
		{"SPUP", model.ModeLive, 0.24, 0.255},
		{"SPUP", model.ModeSuspend, 0.24, 0.255},
	} {
		t.Run(fmt.Sprintf("%s-%s", c.policy, c.mode), func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Policy, cfg.Mode = c.policy, c.mode
			idle := tenantOf(0, 0, 0)
			idle.q.Hint.Utilization = 75
			idle.burst = nil
			works := saturating(model.Hint{Utilization: 25})
			g := newGPU(t, cfg, idle, works)
			g.run(20 * time.Second)
			if got := works.ran.Seconds() / 20; got < c.least || got > c.noneOver {
				t.Errorf("got %.3f of the chip", got)
			}
		})
	}
}
