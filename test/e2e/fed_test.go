// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strconv"
	"testing"
	"time"

	gpumodel "xsched/internal/virtual/model"
)

// interruptions returns how often another process ran during a request of so many kernels, on average, and the
// number of requests.
func (w *world) interruptions(pid, kernels int, from, to int64) (float64, int) {
	w.t.Helper()
	at, spans := w.recorded(pid, from, to)
	total, n := 0, 0
	for i := 0; i+kernels <= len(at); i, n = i+kernels, n+1 {
		for _, s := range spans {
			if s.PID != pid && s.Kind == gpumodel.KindRun && s.T0 >= at[i] && s.T0 < at[i+kernels-1] {
				total++
			}
		}
	}
	if n == 0 {
		w.t.Fatal("no request was finished")
	}
	return float64(total) / float64(n), n
}

// TestFedRequests: a request submitted kernel by kernel pays a context switch per gap under hardware timeslices.
// The policy learns this and suspends the low once per request instead.
func TestFedRequests(t *testing.T) {
	const kernels, us = 9, 30
	w := newWorld(t)
	high := w.tenant(options{priority: 10}, us, "--feed", strconv.Itoa(kernels))
	low := w.tenant(options{}, 20000)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	found := map[string]float64{}
	for _, mode := range []string{"timeslice", "live"} {
		w.must("mode", mode)
		high.send("rate 20")
		high.iterates(10) // the policy has learnt by then
		high.send("pause")
		high.expect("P", 5*time.Second)
		before, err := w.client.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		from := nowNS()
		high.send("rate 20")
		high.iterates(30)
		high.send("pause")
		high.expect("P", 5*time.Second)
		after, err := w.client.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		var n int
		found[mode], n = w.interruptions(high.pid(), kernels, from, nowNS())
		stops := after.Suspends - before.Suspends
		t.Logf("mode %s: %d requests of %d kernels of %d us, ten times as long between them: interrupted %.1f times each, %d stops", mode, n, kernels, us, found[mode], stops)
		// Load on this machine stretches the gaps of some requests, which ends the learnt state for a while.
		if mode == "live" && stops < uint64(n)/4 || mode == "timeslice" && stops > 2 {
			t.Errorf("mode %s: %d stops for %d requests", mode, stops, n)
		}
	}
	if found["live"] > found["timeslice"]/2 {
		t.Errorf("fed requests are interrupted %.1f times, with slices alone %.1f times", found["live"], found["timeslice"])
	}
	high.finish()
	low.finish()
}

// TestWaitedForRequestsStopNobody: timeslices suffice for requests of one kernel; the daemon suspends nobody.
func TestWaitedForRequestsStopNobody(t *testing.T) {
	w := newWorld(t)
	high, low := w.tenant(options{priority: 10}, 3000), w.tenant(options{}, 20000)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	high.send("rate 20")
	high.iterates(20)
	st, err := w.client.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if n := high.iterationsAfter(0); n < 20 || st.Suspends > 2 {
		t.Errorf("%d stops for %d requests", st.Suspends, n)
	}
	high.finish()
	low.finish()
}
