// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// TestSLO runs a service beside three saturating lows. The oracle is what the service
// would leave them if switching were free.
func TestSLO(t *testing.T) {
	for _, c := range []struct {
		name   string
		work   time.Duration
		gap    []time.Duration
		target time.Duration
		state  policy.SLOState
		room   string
		oracle float64 // least part of it for the lows
	}{
		{"1.5x of alone", 10 * ms, []time.Duration{40 * ms, 37 * ms, 43 * ms}, 15 * ms, policy.SLOMet, "protected", 0.9},
		{"plenty", 10 * ms, []time.Duration{40 * ms, 37 * ms, 43 * ms}, 200 * ms, policy.SLOMet, "open", 0.9},
		{"some", 10 * ms, []time.Duration{40 * ms, 37 * ms, 43 * ms}, 21 * ms, policy.SLOMet, "wide", 0.9},
		{"impossible", 10 * ms, []time.Duration{40 * ms, 37 * ms, 43 * ms}, 9 * ms, policy.SLOCantMeet, "protected", 0.9},
		{"short requests", 90 * us, []time.Duration{9370 * us, 8810 * us, 10430 * us}, 600 * us, policy.SLOMet, "protected", 0.9},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Policy = "SLO"
			service := tenantOf(0, c.work, 0)
			service.gap = c.gap
			service.q.Hint.SLO = model.SLO{Latency: c.target}
			tenants := []*tenant{service}
			for range 3 {
				tenants = append(tenants, saturating(model.Hint{}))
			}
			g := newGPU(t, cfg, tenants...)
			g.delay = 350 * us
			const length = 60 * time.Second
			g.run(length)
			st := g.e.SLOs()
			if len(st) != 1 || st[0].State != c.state || st[0].Room != c.room {
				t.Fatalf("status %+v, want %s %s", st, c.state, c.room)
			}
			slices.Sort(service.latency)
			p99 := service.latency[len(service.latency)*99/100]
			if c.state == policy.SLOMet && p99 > c.target {
				t.Errorf("P99 %v of target %v", p99, c.target)
			}
			if c.state == policy.SLOMet != (st[0].Reason == "") {
				t.Errorf("reason %q", st[0].Reason)
			}
			var lows time.Duration
			for _, p := range tenants[1:] {
				lows += p.ran
			}
			oracle := length - service.ran
			t.Logf("P99 %v, lows %.3f of the oracle, %+v", p99, lows.Seconds()/oracle.Seconds(), st[0])
			if lows.Seconds() < c.oracle*oracle.Seconds() {
				t.Errorf("the lows have %.3f of the oracle", lows.Seconds()/oracle.Seconds())
			}
		})
	}
}

// TestSLOGreedyService: beside a service that always has work, the lows get what its
// target leaves.
func TestSLOGreedyService(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Policy = "SLO"
	service := tenantOf(0, 10*ms, 20*us)
	service.q.Hint.SLO = model.SLO{Percentile: 95, Latency: 60 * ms}
	low := saturating(model.Hint{})
	g := newGPU(t, cfg, service, low)
	g.run(30 * time.Second)
	st := g.e.SLOs()[0]
	if st.State != policy.SLOMet || st.Missed > 0.05 {
		t.Errorf("status %+v", st)
	}
	if got := low.ran.Seconds() / 30; got < 0.4 {
		t.Errorf("the low has %.3f of the chip; %+v", got, st)
	}
}

// TestMarkRequest: marks replace busy periods, overlap, and reach the snapshot.
func TestMarkRequest(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Policy = "SLO"
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	id := model.QueueID{Session: 1}
	e.AddQueue(simStart, model.Queue{ID: id, PID: 7, Hint: model.Hint{SLO: model.SLO{Latency: 20 * ms}}, Level: model.LevelInterrupt, Slices: true})
	now := simStart
	e.Decide(now)
	e.MarkRequest(now, 99, true) // an unknown process is ignored
	for range 50 {
		e.MarkRequest(now, 7, true)
		e.MarkRequest(now.Add(ms), 7, true)
		e.SetBusy(now.Add(ms), id, true)
		e.SetBusy(now.Add(2*ms), id, false)
		e.MarkRequest(now.Add(10*ms), 7, false)
		e.MarkRequest(now.Add(11*ms), 7, false)
		now = now.Add(20 * ms)
		e.Decide(now)
	}
	st := e.Snapshot(now)[0].SLO
	if st.Requests != 100 || st.Estimate < 10*ms || st.Estimate > 11*ms || st.State != policy.SLOMet {
		t.Errorf("status %+v", st)
	}
	e.MarkRequest(now, 7, false) // an end without a begin is ignored
	if again := e.SLOs()[0]; again.Requests != 100 {
		t.Errorf("status %+v", again)
	}
}
