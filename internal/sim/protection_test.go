// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"xsched/internal/policy"
)

// TestModelledNative compares what the daemon says a request would take without protection with a simulation
// without protection. The model knows busy periods and no queueing, so requests that follow each other closely
// differ most. A latency target keeps protection from being dropped, so that nothing is measured.
func TestModelledNative(t *testing.T) {
	const graph, eager = "kernel: %s", "kernel: %s, kernels: %d, launch: %s"
	pair := func(rate int, work, low string, lows int) *Scenario {
		return parse(t, fmt.Sprintf(`
duration: 10s
tenants:
  - {name: high, hint: {priority: 10, slo: {latency: 10s}}, arrivals: {rate: %d, jitter: 0.5}, %s}
  - {name: low, count: %d, arrivals: {closed: {depth: 2}}, kernel: %s}
`, rate, work, lows, low))
	}
	keep := func(s *Scenario) *Scenario {
		s.Tenants[0].Hint.SLO.Latency = 10 * time.Second
		return s
	}
	for _, c := range []struct {
		name     string
		scenario *Scenario
		within   float64
	}{
		{"inference.yaml", load(t, "inference.yaml"), 0.10},
		{"eager.yaml", keep(load(t, "eager.yaml")), 0.10},
		{"short kernel, one low", pair(100, fmt.Sprintf(graph, "90us"), "20ms", 1), 0.12},
		{"3 ms graph at 20/s", pair(20, fmt.Sprintf(graph, "3.1ms"), "1ms", 1), 0.12},
		{"3 ms graph at 100/s", pair(100, fmt.Sprintf(graph, "3.1ms"), "1ms", 1), 0.20},
		{"3 ms graph at 50/s, three lows", pair(50, fmt.Sprintf(graph, "3.1ms"), "20ms", 3), 0.25},
		{"10 ms graph", pair(20, fmt.Sprintf(graph, "9.7ms"), "20ms", 1), 0.10},
		{"eager, 9 ms", pair(40, fmt.Sprintf(eager, "5us", 210, "42us"), "1ms", 1), 0.10},
		{"eager, 26 ms", pair(20, fmt.Sprintf(eager, "5us", 620, "42us"), "1ms", 1), 0.10},
		{"eager, 26 ms, three lows", pair(20, fmt.Sprintf(eager, "5us", 620, "42us"), "20ms", 3), 0.12},
		{"eager, 100 ms", pair(5, fmt.Sprintf(eager, "5us", 2400, "42us"), "5ms", 1), 0.10},
	} {
		runs := run(t, c.scenario, Options{Policies: []string{"HPF", "native"}}).Runs
		if len(runs[0].Protections) == 0 {
			t.Errorf("%s: no account", c.name)
			continue
		}
		p, native := runs[0].Protections[0], runs[1].Classes[0].Latency
		off := func(got, want float64) float64 { return got/1e6/want - 1 }
		p50, p99 := off(float64(p.NativeP50), native.P50), off(float64(p.NativeP99), native.P99)
		t.Logf("%-32s native P50 %6.2f ms, %s %+5.1f %%; P99 %6.2f ms, %+5.1f %%; cost at most %.1f %%, lows keep %.1f of %.1f %%",
			c.name, native.P50, p.Source, 100*p50, native.P99, 100*p99, 100*p.CostShare, 100*runs[0].Classes[1].Kept, 100*runs[1].Classes[1].Kept)
		if p.Source != policy.Modelled || math.Abs(p50) > c.within || math.Abs(p99) > c.within {
			t.Errorf("%s: %s P50 %v, P99 %v; simulated %.2f and %.2f ms", c.name, p.Source, p.NativeP50, p.NativeP99, native.P50, native.P99)
		}
	}
}

// TestCPUBoundHigh: a CPU-bound program whose protection costs the low much and gains little shares natively after a
// while. On a GPU without timeslices its protection would suspend the low throughout its requests.
func TestCPUBoundHigh(t *testing.T) {
	s := parse(t, `
duration: 30s
warmup: 10s
gpu: {slices: false}
tenants:
  - {name: high, hint: {priority: 10}, arrivals: {rate: 20, jitter: 0.5}, kernel: 5us, kernels: 620, launch: 42us}
  - {name: low, arrivals: {closed: {depth: 2}}, kernel: 1ms}
`)
	runs := run(t, s, Options{Policies: []string{"HPF", "native"}}).Runs
	got, native := runs[0].Classes, runs[1].Classes
	t.Logf("P99 %.2f ms, native %.2f; the low keeps %.1f %%, natively %.1f; %+v", got[0].Latency.P99, native[0].Latency.P99, 100*got[1].Kept, 100*native[1].Kept, runs[0].Protections[0])
	if got[1].Kept < native[1].Kept-0.05 || got[0].Latency.P99 > 1.02*native[0].Latency.P99 {
		t.Errorf("P99 %.2f ms, native %.2f; the low keeps %.1f %%, natively %.1f", got[0].Latency.P99, native[0].Latency.P99, 100*got[1].Kept, 100*native[1].Kept)
	}
	// With a latency target protection stays, whatever it costs.
	s.Tenants[0].Hint.SLO.Latency = time.Second
	kept := run(t, s, Options{Policies: []string{"HPF"}}).Runs[0].Classes[1].Kept
	if kept > native[1].Kept-0.1 {
		t.Errorf("the low keeps %.1f %% beside a program with a latency target: the test shows nothing", 100*kept)
	}
}

// TestStallingThread checks a request of 3 ms on a busy host: its thread stalls for about a millisecond now and
// then, and launches at an uneven pace. A stop must not be postponed beyond the wait.
func TestStallingThread(t *testing.T) {
	s, err := load(t, "stalls.yaml").Split("3ms")
	if err != nil {
		t.Fatal(err)
	}
	res := run(t, s[0], Options{Policies: []string{"HPF/whole", "HPF/wait", "HPF/in-time"}})
	whole, wait, inTime := res.Runs[0].Classes[0].Latency, res.Runs[1].Classes[0].Latency, res.Runs[2].Classes[0].Latency
	t.Logf("P50, P95, P99: whole %.2f %.2f %.2f, at the wait %.2f %.2f %.2f, in time %.2f %.2f %.2f", whole.P50, whole.P95, whole.P99,
		wait.P50, wait.P95, wait.P99, inTime.P50, inTime.P95, inTime.P99)
	if inTime.P50 > 1.03*whole.P50 || inTime.P95 > 1.04*whole.P95 || inTime.P99 > 1.04*whole.P99 || inTime.P99 > wait.P99 {
		t.Error("just in time protects less than it could")
	}
	a, b := res.Runs[1].Classes[1].Kept, res.Runs[2].Classes[1].Kept
	t.Logf("the job keeps %.4f with stops at the wait, %.4f with stops just in time", a, b)
	if b < a-0.006 {
		t.Error("just in time costs the job too much")
	}
}
