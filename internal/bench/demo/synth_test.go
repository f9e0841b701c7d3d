// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"math/rand/v2"
	"time"

	"xsched/internal/bench"
	"xsched/internal/report"
)

// synthetic is a result with made-up but plausible numbers, for the tests of
// table, JSON and report.
func synthetic() *Result {
	r := &Result{
		Device: bench.VirtualDevice, Date: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC),
		Machine: bench.Machine{CPUs: 2, Model: "Test & Co <CPU>", Load: 0.1, Scheduling: bench.NormalScheduling}, Seed: 7,
		Workload: bench.Workload{HighRate: 100, HighUS: 90, LowUS: 20000},
	}
	for _, lows := range []int{1, 3} {
		r.Scenarios = append(r.Scenarios, syntheticScenario(lows))
	}
	return r
}

func syntheticScenario(lows int) Scenario {
	rng := rand.New(rand.NewPCG(uint64(lows), 1))
	s := Scenario{
		Name: scenarioName(lows), Lows: lows, LowAloneRate: 50,
		Modes: map[string]*Mode{}, raw: map[string]*rawMode{},
	}
	tenants := []*bench.Tenant{{Name: "high", ID: 100}}
	for i := range lows {
		tenants = append(tenants, &bench.Tenant{Name: bench.TenantName(i + 1), ID: 101 + i})
	}
	for _, name := range ModesOf("nvidia") {
		var d []time.Duration
		for range 360 {
			base := 100*time.Microsecond + time.Duration(rng.ExpFloat64()*float64(8*time.Microsecond))
			switch name {
			case ModeNative:
				base += time.Duration(rng.Float64() * float64(lows) * 2.3e6)
			case ModeLv1:
				base += time.Duration(rng.Float64() * float64(lows) * 6e6)
			case ModeLv3:
				base += 200*time.Microsecond + time.Duration(rng.ExpFloat64()*2e4)
			}
			d = append(d, base)
		}
		m := &Mode{High: report.Summarize(d), Wait: &report.Latency{N: 360}, Seconds: 3.6, Offered: 360, GPU: &bench.Split{High: 0.009, Idle: 0.991}}
		raw := &rawMode{Latencies: d, Span: 100 * time.Millisecond}
		if name != ModeAlone {
			m.Low = &Low{Kept: 0.94, Rate: 47}
			m.GPU = &bench.Split{High: 0.009, Low: 0.94, Switching: 0.05, Idle: 0.001}
			m.Preemptions = 360
			m.Wait = &report.Latency{P99: 0.205, N: 360}
		}
		w := bench.Window{From: 1000, To: 1000 + int64(raw.Span)}
		var segs []bench.Segment
		var waits []bench.Wait
		var requests []bench.Sample
		for i, t := 0, w.From; t < w.To; i++ {
			if name == ModeAlone {
				segs = append(segs, bench.Segment{From: t, To: t + 90_000, PID: 100})
				requests = append(requests, bench.Sample{Start: t, End: t + 100_000})
				t += 10_000_000
				continue
			}
			segs = append(segs,
				bench.Segment{From: t, To: t + 2_000_000, PID: 101 + i%lows},
				bench.Segment{From: t + 2_000_000, To: t + 2_200_000, PID: 100, Switch: true},
				bench.Segment{From: t + 2_200_000, To: t + 2_290_000, PID: 100})
			waits = append(waits, bench.Wait{PID: 100, Submitted: t + 500_000, Started: t + 2_200_000})
			requests = append(requests, bench.Sample{Start: t + 450_000, End: t + 2_300_000})
			t += 2_490_000
		}
		raw.Lanes = lanesOf(tenants, segs, waits, requests, w, name == ModeAlone)
		s.Modes[name], s.raw[name] = m, raw
	}
	s.Proof, _ = prove(s.Name, goodEvidence(lows))
	return s
}

// goodEvidence passes all checks; each proof test invalidates one item.
func goodEvidence(lows int) *Evidence {
	ev := &Evidence{
		Modes:    ModesOf("nvidia"),
		Recorded: true,
		Tenants:  []TenantEvidence{{Name: "high", PID: 100, Hooked: 9000, Launches: 1500, Executed: 1500, Own: 1500, Checksum: true}},
		Modal: map[string]ModeEvidence{
			ModeAlone:  {},
			ModeNative: {Preemptions: 900},
			ModeLv1:    {Preemptions: 300, Suspends: 360, GateWaits: 170},
			ModeLv3:    {Preemptions: 361, Suspends: 360, Deep: 360},
		},
		Hold:   &HoldEvidence{Try: 1, Window: bench.Window{From: 0, To: 200_000_000}, Ran: map[int]time.Duration{}, Resumed: true},
		Slices: []SliceEvidence{{Name: "high", PID: 100, Plan: time.Second, Device: time.Second}},
	}
	for i := range lows {
		ev.Tenants = append(ev.Tenants, TenantEvidence{
			Name: bench.TenantName(i + 1), PID: 101 + i, Hooked: 4000, Launches: 700, Executed: 700, Own: 700, Checksum: true,
		})
		ev.Slices = append(ev.Slices, SliceEvidence{Name: bench.TenantName(i + 1), PID: 101 + i, Plan: time.Microsecond, Device: time.Microsecond})
	}
	for range 360 {
		ev.Reached = append(ev.Reached, 210*time.Microsecond)
	}
	return ev
}
