// SPDX-License-Identifier: Apache-2.0

package sim

import "testing"

// TestCopyOnlyLow: a program that only copies is left alone. Both have what they have natively, and nobody is
// stopped or gets another timeslice.
func TestCopyOnlyLow(t *testing.T) {
	s := parse(t, `
duration: 10s
gpu: {copy_slowdown: 0.1}
tenants:
  - {name: high, hint: {priority: 10}, arrivals: {rate: 100, jitter: 0.5}, kernel: 3.1ms}
  - {name: copies, arrivals: {closed: {depth: 1}}, copy: 8000000, kernels: 0}
`)
	runs := run(t, s, Options{Policies: []string{"HPF", "native"}}).Runs
	got, native := runs[0].Classes, runs[1].Classes
	t.Logf("P99 %.3f ms, native %.3f; copies keep %.4f, native %.4f; %+v", got[0].Latency.P99, native[0].Latency.P99, got[1].Rate, native[1].Rate, runs[0].Engine)
	if got[0].Latency.P99 > native[0].Latency.P99 || got[1].Rate < 0.99*native[1].Rate {
		t.Errorf("P99 %.3f ms, native %.3f; %.1f copies a second, native %.1f", got[0].Latency.P99, native[0].Latency.P99, got[1].Rate, native[1].Rate)
	}
	if e := runs[0].Engine; e.Preemptions+e.Yields > 2 { // before its first copy has ended
		t.Errorf("%+v", e)
	}
}
