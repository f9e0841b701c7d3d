// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/vgpu"
)

// fed are the requests of so many kernels of a process in a stretch of time, each from its first kernel's arrival
// at the device to the end of its last one; the median, and how many there are.
func (w *world) fed(pid, kernels int, from, to int64) (time.Duration, int) {
	w.t.Helper()
	arrivals, err := w.gpu.Waits(model.Time(from), model.Time(to))
	if err != nil {
		w.t.Fatal(err)
	}
	spans, err := w.gpu.Timeline(model.Time(from), model.Time(to))
	if err != nil {
		w.t.Fatal(err)
	}
	var at []int64
	for _, a := range arrivals {
		if a.PID == pid {
			at = append(at, a.Submitted)
		}
	}
	slices.Sort(at)
	var took []time.Duration
	for i := 0; i+kernels < len(at); i += kernels { // without the last one, which may not be over
		end := int64(0)
		for _, s := range spans {
			if s.PID == pid && s.Kind == vgpu.KindRun && s.T0 >= at[i] && s.T0 < at[i+kernels] {
				end = s.T1
			}
		}
		took = append(took, time.Duration(end-at[i]))
	}
	slices.Sort(took)
	if len(took) == 0 {
		w.t.Fatal("no request was finished")
	}
	return took[len(took)/2], len(took)
}

// A request that is submitted kernel by kernel pays a switch for every gap where the hardware
// switches by itself; that is learnt, and the low is stopped once a request instead.
func TestFedRequests(t *testing.T) {
	const kernels, us = 9, 30
	w := newWorld(t)
	high := w.tenant(options{priority: 10}, us, "--feed", strconv.Itoa(kernels))
	low := w.tenant(options{}, 20000)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	median := map[string]time.Duration{}
	for _, mode := range []string{"timeslice", "live"} {
		w.must("mode", mode)
		high.send("rate 20")
		time.Sleep(500 * time.Millisecond) // what is learnt is learnt by then
		high.send("pause")
		high.expect("P", 5*time.Second)
		before, err := w.client.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		from := nowNS()
		high.send("rate 20")
		time.Sleep(2 * time.Second)
		high.send("pause")
		high.expect("P", 5*time.Second)
		after, err := w.client.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		var n int
		median[mode], n = w.fed(high.pid(), kernels, from, nowNS())
		stops := after.Suspends - before.Suspends
		t.Logf("mode %s: %d requests of %d kernels of %d us, ten times as long between them: median %v on the device, %d stops", mode, n, kernels, us, median[mode], stops)
		if want := mode == "live"; want != (stops >= uint64(n)*3/4) {
			t.Errorf("mode %s: %d stops for %d requests", mode, stops, n)
		}
	}
	if median["live"] > median["timeslice"]-50*time.Microsecond {
		t.Errorf("fed requests take %v, with slices alone %v", median["live"], median["timeslice"])
	}
	high.finish()
	low.finish()
}

// One kernel at a time and a wait for it is what slices are for: nobody is stopped.
func TestWaitedForRequestsStopNobody(t *testing.T) {
	w := newWorld(t)
	high, low := w.tenant(options{priority: 10}, 3000), w.tenant(options{}, 20000)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	high.send("rate 20")
	time.Sleep(1500 * time.Millisecond)
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
