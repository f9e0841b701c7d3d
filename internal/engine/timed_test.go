// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// Properties that need time: programs with random work share a modelled device.

// timed lists these properties and the policies that guarantee them.
var timed = []struct {
	name     string
	policies []string // nil: all
	history  func(s source, policy string)
}{
	{"starvation", nil, starvationHistory},
	// SLO without targets is HPF. The others do not order by priority.
	{"inversion", []string{"HPF", "HHPF", "CHPF", "AWF", "LAX", "SLO"}, inversionHistory},
	{"shares", []string{"UP", "PUP", "SPUP", "CFS", "RR"}, shareHistory},
}

// TestTimed uses rapid, which can shrink counterexamples.
func TestTimed(t *testing.T) {
	for _, p := range timed {
		t.Run(p.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s := rapidSource{t}
				p.history(s, pickOf(s, "policy", orAll(p.policies)...))
			})
		})
	}
}

// TestTimedHistories is TestTimed for each policy, many times.
func TestTimedHistories(t *testing.T) {
	for _, p := range timed {
		for _, name := range orAll(p.policies) {
			t.Run(p.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				for seed := range historyCount() {
					p.history(seeded{rand.New(rand.NewPCG(seed, uint64(policy.Number(name)))), t, seed}, name)
				}
			})
		}
	}
}

func orAll(policies []string) []string {
	if policies == nil {
		return policy.Names()
	}
	return policies
}

// some draws 1 to 3 of these.
func some(s source, what string, of ...time.Duration) []time.Duration {
	out := make([]time.Duration, 1+s.pick(what+"s", 3))
	for i := range out {
		out[i] = pickOf(s, what, of...)
	}
	return out
}

// starvationHistory: the starvation bound holds under every policy and every mode that
// schedules.
func starvationHistory(s source, name string) {
	cfg := DefaultConfig()
	cfg.Policy = name
	cfg.Mode = pickOf(s, "mode", model.ModeTimeslice, model.ModeSuspend, model.ModeLevel, model.ModeLive)
	cfg.ForceLevel = model.LevelInterrupt
	cfg.Quantum = pickOf(s, "quantum", 20*ms, 50*ms)
	cfg.StarvationBound = pickOf(s, "bound", 200*ms, 500*ms)
	n := 2 + s.pick("tenants", 5)
	tenants := make([]*tenant, n)
	for i := range tenants {
		p := tenantOf(model.Priority(s.pick("priority", 5)-2), 0, 0)
		p.burst = some(s, "burst", 100*us, 3*ms, 300*ms, 5*time.Second)
		p.gap = some(s, "gap", 10*us, 50*us, 300*us, 700*us, 5*ms)
		p.q.Slices = s.pick("slices", 5) > 0
		tenants[i] = p
	}
	g := newGPU(s, cfg, tenants...)
	round := time.Duration(2*n) * cfg.Quantum
	promise := max(cfg.StarvationBound, round) + round
	g.run(promise + 300*ms)

	// Others run during a grant: it takes effect after one round of their slices.
	slack := time.Duration(n) * 10 * ms
	for i, p := range tenants {
		if p.worst > promise+slack {
			s.Fatalf("tenant %d (priority %d) had nothing for %v, promised %v; %s", i+1, p.q.Hint.Priority, p.worst, promise, g.e)
		}
	}
}

// inversionHistory: where priorities count, a lower tenant runs beside a ready higher
// one for a switch at most, or for the quantum of a starvation grant.
func inversionHistory(s source, name string) {
	cfg := DefaultConfig()
	cfg.Policy = name
	cfg.Mode = pickOf(s, "mode", model.ModeLive, model.ModeSuspend)
	cfg.StarvationBound = pickOf(s, "bound", 0, 300*ms)
	tenants := []*tenant{tenantOf(10, 0, 0)}
	for range 1 + s.pick("lows", 4) {
		tenants = append(tenants, tenantOf(model.Priority(s.pick("priority", 3)-1), 0, 0))
	}
	for _, p := range tenants {
		p.burst = some(s, "burst", 100*us, 3*ms, 300*ms)
		p.gap = some(s, "gap", 10*us, 700*us, 5*ms)
		p.q.Hint.Nice = -int(p.q.Hint.Priority) // the same order for CHPF
	}
	g := newGPU(s, cfg, tenants...)
	g.run(800 * ms)
	allowed := 500 * us // one switch, and another for an even higher tenant that arrives meanwhile
	if cfg.StarvationBound > 0 {
		allowed += cfg.Quantum
	}
	if g.worstInversion > allowed {
		s.Fatalf("inverted for %v under %s", g.worstInversion, g.e)
	}
}

// shareHistory: for any weights of saturating tenants, each part of the device is
// within two turns of its share, plus a twentieth of the share with slices. Under SPUP
// a share is also a quota, missed by at most one slice per window.
func shareHistory(s source, name string) {
	cfg := DefaultConfig()
	cfg.Policy = name
	cfg.Mode = pickOf(s, "mode", model.ModeLive, model.ModeSuspend, model.ModeTimeslice)
	cfg.StarvationBound = pickOf(s, "bound", 0, cfg.StarvationBound)
	tenants, sum := make([]*tenant, 1+s.pick("tenants", 6)), 0
	for i := range tenants {
		u := 1 + s.pick("utilization", 100)
		if name == "RR" {
			u = 1
		}
		tenants[i] = saturating(model.Hint{Utilization: u})
		sum += u
	}
	g := newGPU(s, cfg, tenants...)
	const length = 20 * time.Second
	g.run(length)
	var all time.Duration
	for _, p := range tenants {
		all += p.ran
	}
	strict := name == "SPUP" && cfg.Mode != model.ModeTimeslice
	for i, p := range tenants {
		share, of := float64(p.q.Hint.Utilization)/float64(sum), all
		if strict {
			share, of = min(share, float64(p.q.Hint.Utilization)/100), length
		}
		slack := 0.05*share + float64(2*cfg.Quantum)/float64(length)
		if bound := cfg.StarvationBound; bound > 0 && share*bound.Seconds() < 2*cfg.Timeslice.Seconds() {
			slack += cfg.Quantum.Seconds() / bound.Seconds() // turns are further apart than the starvation bound
		}
		if strict && cfg.Mode == model.ModeLive {
			slack += min(cfg.Timeslice.Seconds()/cfg.Window.Seconds(), share/4)
		}
		if got := p.ran.Seconds() / of.Seconds(); math.Abs(got-share) > slack {
			s.Fatalf("tenant %d of %d has %.4f of the device, its share is %.4f; %s, %s", i, len(tenants), got, share, g.e, cfg.Mode)
		}
	}
}
