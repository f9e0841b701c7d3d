// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strconv"
	"testing"
)

// strategyRound is what the device recorded under one strategy.
type strategyRound struct {
	longRecord
	stops          uint64
	kept, switches float64 // parts of the window: the low ran, the device switched
}

// TestLongStrategies compares the strategies for launch-bound requests by what the device did: whether the low was
// stopped, whether it ran while the request was submitted, and whether it ran when the program began to wait.
func TestLongStrategies(t *testing.T) {
	const kernels, us = 64, 12
	w := newWorld(t, "--policy", "hpf/in-time")
	// A latency target keeps the daemon from dropping a protection that gains little. HPF reads it for nothing else.
	high := w.tenant(options{priority: 10, env: []string{"XSCHED_SLO_US=60000000"}}, us, "--feed", strconv.Itoa(kernels))
	low := w.tenant(options{}, 20000)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	high.send("rate 20")
	if list, err := w.client.List(t.Context()); err != nil || list.Policy != "HPF/in-time" {
		t.Fatalf("%v, policy %s", err, list.Policy)
	}
	high.iterates(20) // it is known as launch-bound by then
	// Strategies that differ in what the device does. Other load on this machine delays the program and the daemon:
	// each has twenty rounds for a good one.
	for _, c := range []struct {
		name  string
		slice int64 // of the low while it may run
		good  func(r *strategyRound) bool
	}{
		{"HPF", 1000, func(r *strategyRound) bool { return r.stops <= 2 && r.share >= 0.6 && r.switches <= 0.1 }},
		{"HPF/in-time", nativeSliceNS, func(r *strategyRound) bool { return r.stops >= uint64(r.n/2) && r.share >= 0.6 && r.beside <= 0.4 }},
	} {
		w.must("policy", c.name)
		eventually(t, soon, "the low has its slice under "+c.name, func() bool { return w.account(low.pid()).SliceNS == c.slice })
		for round := 1; ; round++ {
			r := w.strategyRound(high, low, kernels)
			t.Logf("%s: %d requests, %d stops; the low runs for %.0f %% of the first half of a request, and at the end of %.0f %%, which come %.2f ms after the last launch; it has %.1f %% of the device, switching %.1f %%",
				c.name, r.n, r.stops, 100*r.share, 100*r.beside, r.end, 100*r.kept, 100*r.switches)
			if r.n >= 15 && c.good(&r) {
				break
			}
			if round == 20 {
				t.Errorf("%s: %+v", c.name, r)
				break
			}
		}
	}
	high.finish()
	low.finish()
}

// strategyRound measures twenty requests.
func (w *world) strategyRound(high, low *program, kernels int) (r strategyRound) {
	w.t.Helper()
	high.send("rate 20")
	high.iterates(10) // in step with the strategy
	before, from := w.stops(), nowNS()
	high.iterates(20)
	to := nowNS()
	r.stops = w.stops() - before
	high.send("pause")
	high.expect("P", soon)
	r.longRecord = w.longRequests(high.pid(), low.pid(), kernels, from, nowNS())
	h := w.heldIn(from, to)
	r.kept, r.switches = h.run[low.pid()].Seconds()/h.window.Seconds(), h.change.Seconds()/h.window.Seconds()
	return r
}
