// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math"
	"slices"
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

// TestShares compares the shares of saturating tenants with their hints, for slices
// and for turns.
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
							slack = 0.05 // the cost of switching counts as service
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

// TestPools: the programs of a pool have one share together, however many of them have work.
func TestPools(t *testing.T) {
	for _, name := range []string{"UP", "PUP", "SPUP", "CFS"} {
		for _, mode := range []model.Mode{model.ModeLive, model.ModeTimeslice, model.ModeSuspend} {
			for _, c := range []struct {
				share, programs, busy int
				gang                  string
			}{
				{40, 4, 1, ""},
				{40, 4, 2, ""},
				{40, 4, 3, ""},
				{40, 4, 4, ""},
				{40, 12, 12, ""},
				{40, 20, 20, ""},
				{40, 20, 20, "gang"},
				{5, 16, 16, ""},
			} {
				if name == "SPUP" && mode == model.ModeSuspend && c.share == 5 {
					continue // the starvation bound gives each of them more than its part of 10 ms
				}
				t.Run(fmt.Sprintf("%s-%s-%d-%d%s", name, mode, c.share, c.busy, c.gang), func(t *testing.T) {
					cfg := DefaultConfig()
					cfg.Policy, cfg.Mode = name, mode
					hint := model.Hint{Utilization: c.share, Pool: "pod", Gang: c.gang}
					other := saturating(model.Hint{Utilization: 100 - c.share})
					tenants := []*tenant{other}
					for i := range c.programs {
						member := saturating(hint)
						if i >= c.busy {
							member = tenantOf(0, 0, 0)
							member.q.Hint, member.burst = hint, nil
						}
						tenants = append(tenants, member)
					}
					g := newGPU(t, cfg, tenants...)
					length := 60 * time.Second
					g.run(length)
					var pool time.Duration
					for _, p := range tenants[1:] {
						pool += p.ran
					}
					want := float64(c.share) / 100
					under, over := 0.925*want, 1.075*want
					if name == "SPUP" || c.gang != "" {
						under = 0.75 * want // the cost of switching counts as service
					}
					if got := float64(pool) / float64(pool+other.ran); got < under || got > over {
						t.Errorf("the pool has %.3f of the chip, wants %.2f", got, want)
					}
					kept, least := float64(pool+other.ran)/float64(length), 0.9
					switch {
					case mode == model.ModeTimeslice && c.busy > 4:
						least = 0.6 // those whose turn it is not have tiny slices
					case c.gang != "":
						least = 0.75 // all of it run at once, with short slices
					}
					if kept < least {
						t.Errorf("kept %.3f of the chip", kept)
					}
					for _, p := range tenants[1 : 1+c.busy] {
						if got := float64(p.ran) / float64(pool); got < 0.6/float64(c.busy) && c.gang == "" {
							t.Errorf("a program of %d has %.3f of its pool", c.busy, got)
						}
						if p.worst > 4*time.Second {
							t.Errorf("a program of %d waited for %v", c.busy, p.worst)
						}
					}
				})
			}
		}
	}
}

// replace ends the program of a tenant and starts another in its place.
func (g *gpu) replace(p *tenant, gap bool) {
	g.e.RemoveQueue(g.now, p.q.ID)
	if gap {
		g.decide()
	}
	g.pending = slices.DeleteFunc(g.pending, func(l late) bool { return l.want.Queue == p.q.ID })
	p.q.ID.Index++
	p.q.PID += 1000
	p.want = model.Desired{Queue: p.q.ID}
	g.e.AddQueue(g.now, p.q)
	g.e.SetBusy(g.now, p.q.ID, true)
	g.decide()
}

// TestPoolPays: a pool gains nothing by replacing its programs.
func TestPoolPays(t *testing.T) {
	for _, name := range []string{"UP", "PUP", "SPUP", "CFS"} {
		for _, mode := range []model.Mode{model.ModeLive, model.ModeTimeslice, model.ModeSuspend} {
			for _, how := range []string{"at once", "with a gap", "alone"} {
				if how == "alone" && (name != "SPUP" || mode == model.ModeTimeslice) {
					continue // only SPUP has quotas, by suspending
				}
				t.Run(fmt.Sprintf("%s-%s-%s", name, mode, how), func(t *testing.T) {
					cfg := DefaultConfig()
					cfg.Policy, cfg.Mode = name, mode
					p, other := saturating(model.Hint{Utilization: 20, Pool: "pod"}), saturating(model.Hint{Utilization: 80})
					tenants := []*tenant{p, other}
					if how == "alone" {
						tenants = tenants[:1]
					}
					g := newGPU(t, cfg, tenants...)
					length := 20 * time.Second
					for range length / (20 * time.Millisecond) {
						g.run(20 * time.Millisecond)
						g.replace(p, how != "at once")
					}
					// A gap shortens one slice of the other.
					if got := float64(p.ran) / float64(length); got > 0.26 {
						t.Errorf("the pool has %.3f of the chip", got)
					}
				})
			}
		}
	}
}

// TestBestEffort: beside any number of programs of the best effort a reserved share is kept, and those have
// no quota. Programs without a grant count as before.
func TestBestEffort(t *testing.T) {
	reserved, spare := model.Hint{Utilization: 40, Pool: "pod"}, model.Hint{Pool: model.PoolBestEffort}
	asks := model.Hint{Pool: model.PoolBestEffort, Utilization: 100, Nice: -20}
	for _, c := range []struct {
		name  string
		hints []model.Hint
		idle  int // of these, the first
		want  []float64
	}{
		{"one", []model.Hint{reserved, spare}, 0, []float64{0.4, 0.6}},
		{"three", []model.Hint{reserved, spare, spare, spare}, 0, []float64{0.4, 0.2, 0.2, 0.2}},
		{"one that asks for all", []model.Hint{reserved, asks}, 0, []float64{0.4, 0.6}},
		{"without work of the reserved", []model.Hint{reserved, spare}, 1, []float64{0, 1}},
		{"nothing reserved", []model.Hint{spare, spare}, 0, []float64{0.5, 0.5}},
		{"two reserve", []model.Hint{reserved, {Utilization: 30, Pool: "other"}, spare}, 0, []float64{0.4, 0.3, 0.3}},
		{"all is reserved", []model.Hint{reserved, {Utilization: 60, Pool: "other"}, spare}, 0, []float64{0.396, 0.594, 0.01}},
		{"no grant", []model.Hint{reserved, {}}, 0, []float64{0.286, 0.714}},
	} {
		for _, name := range []string{"UP", "PUP", "SPUP", "CFS"} {
			for _, mode := range []model.Mode{model.ModeLive, model.ModeTimeslice, model.ModeSuspend} {
				t.Run(fmt.Sprintf("%s-%s-%s", c.name, name, mode), func(t *testing.T) {
					cfg := DefaultConfig()
					cfg.Policy, cfg.Mode = name, mode
					var tenants []*tenant
					for i, hint := range c.hints {
						p := saturating(hint)
						if i < c.idle {
							p.burst = nil
						}
						tenants = append(tenants, p)
					}
					g := newGPU(t, cfg, tenants...)
					g.run(60 * time.Second)
					var all time.Duration
					for _, p := range tenants {
						all += p.ran
					}
					for i, p := range tenants {
						if got := float64(p.ran) / float64(all); math.Abs(got-c.want[i]) > 0.05*c.want[i]+0.02 {
							t.Errorf("tenant %d has %.3f of the chip, wants %.3f", i, got, c.want[i])
						}
					}
				})
			}
		}
	}
}

// TestIdleShares: the others get what an idle tenant does not use, except under SPUP.
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

// TestStrictShareForDays: accounting stays exact however long the daemon runs and
// whatever policy was in force before. A week under HPF beside an idle high, where
// a low has a tiny slice, and a day under SPUP are simulated. SPUP must hold its
// quotas on the first day as on the last, and must not ask for decision after
// decision without time passing.
func TestStrictShareForDays(t *testing.T) {
	for _, mode := range []model.Mode{model.ModeLive, model.ModeSuspend} {
		t.Run(string(mode), func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Mode = mode
			e, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			for n, hint := range []model.Hint{{Priority: 10}, {Utilization: 25}, {Utilization: 50}} {
				e.AddQueue(simStart, model.Queue{
					ID: model.QueueID{Session: model.SessionID(n + 1)}, PID: n + 1, Hint: hint,
					Level: model.LevelInterrupt, Slices: true, Busy: n == 1,
				})
			}
			now, decisions := simStart, 0
			until := func(end model.Time) {
				for now < end {
					_, wake := e.Decide(now)
					if decisions++; wake <= now {
						t.Fatalf("wake %v is not after %v", wake, now)
					}
					now = min(wake, end)
				}
			}
			until(now.Add(7 * 24 * time.Hour))
			e.SetBusy(now, model.QueueID{Session: 3}, true)
			if err := e.SetPolicy("SPUP"); err != nil {
				t.Fatal(err)
			}
			for _, length := range []time.Duration{10 * time.Second, 24 * time.Hour, 10 * time.Second} {
				e.Decide(now)
				before, began := e.Snapshot(now), now
				decisions = 0
				until(began.Add(length))
				e.Decide(now)
				for i, s := range e.Snapshot(now) {
					got := (s.Queue.Got - before[i].Queue.Got).Seconds() / length.Seconds()
					want := float64(s.Queue.Hint.Utilization) / 100
					if !s.Queue.Busy {
						want = 0
					}
					if math.Abs(got-want) > 0.02 {
						t.Errorf("from %v on: %.4f of the device, quota %.2f", began.Sub(simStart), got, want)
					}
				}
				if perWindow := float64(decisions) / (length.Seconds() / cfg.Window.Seconds()); perWindow > 40 {
					t.Errorf("from %v on: %.1f decisions per window", began.Sub(simStart), perWindow)
				}
			}
		})
	}
}
