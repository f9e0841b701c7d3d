// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// request is one kernel of a program that submits one at a time, in device time.
type request struct{ arrived, ended int64 }

// requests returns the completed requests of a process that arrived at the device in [from, to). Work between two
// arrivals belongs to the first.
func (w *world) requests(pid int, from, to int64) []request {
	w.t.Helper()
	arrived, spans := w.recorded(pid, from, to)
	var out []request
	for _, at := range arrived {
		out = append(out, request{arrived: at})
	}
	at := 0
	for _, s := range spans {
		if s.PID != pid || s.Kind != gpumodel.KindRun {
			continue
		}
		for at+1 < len(out) && s.T0 >= out[at+1].arrived {
			at++
		}
		if len(out) > 0 && s.T0 >= out[at].arrived {
			out[at].ended = s.T1
		}
	}
	// The last request may be incomplete.
	return out[:max(0, len(out)-1)]
}

// recorded returns the arrivals of a process's kernels in [from, to), in order, and the device's timeline.
func (w *world) recorded(pid int, from, to int64) (arrived []int64, spans []gpumodel.Span) {
	w.t.Helper()
	arrivals, err := w.gpu.Waits(model.Time(from), model.Time(to))
	if err != nil {
		w.t.Fatal(err)
	}
	if spans, err = w.gpu.Timeline(model.Time(from), model.Time(to)); err != nil {
		w.t.Fatal(err)
	}
	for _, a := range arrivals {
		if a.PID == pid {
			arrived = append(arrived, a.Submitted)
		}
	}
	slices.Sort(arrived)
	return arrived, spans
}

// p99 is the nearest-rank 99th percentile of the requests' latencies.
func p99(of []request) time.Duration {
	took := make([]time.Duration, len(of))
	for i, r := range of {
		took[i] = time.Duration(r.ended - r.arrived)
	}
	slices.Sort(took)
	return took[(len(took)*99+99)/100-1]
}

// oracle is the upper bound of the lows' device time in a window, beside a service whose requests arrive at the
// given times and run for length each. It knows every arrival in advance, runs each request at once, and pays two
// mid-kernel context switches for it. The rest belongs to one low. Requests that arrive within the target, as after a
// delay of the service by other load, run together and pay once.
func oracle(window time.Duration, of []request, length, target time.Duration) (lows time.Duration) {
	change := gpumodel.DefaultCosts().MidSwitch
	lows = window
	for i, r := range of {
		lows -= length
		if i == 0 || time.Duration(r.arrived-of[i-1].arrived) >= target+2*change {
			lows -= 2 * change
		}
	}
	return lows
}

// undisturbed returns the requests during which no thread of this machine waited for a processor. Others may be late
// because the daemon was.
func undisturbed(of []request) (out []request) {
	for _, r := range of {
		if machine().in(r.arrived, r.ended) == 0 {
			out = append(out, r)
		}
	}
	return out
}

// TestLongSLOOnTheDevice: a service meets a target of 1.5 times its isolated P99 beside three saturating lows, which get
// at least 90 % of the oracle's bound. All times are device time.
func TestLongSLOOnTheDevice(t *testing.T) {
	const (
		length = 20 * time.Millisecond
		hz     = 12.5
	)
	w := newWorld(t, "--policy", "SLO")
	start := func(env ...string) *program {
		p := w.tenant(options{env: env}, int(length.Microseconds()))
		w.waitLevel(p.pid(), 3)
		p.send(fmt.Sprintf("rate %g", hz))
		return p
	}
	alone := start()
	from := nowNS()
	alone.iterates(30)
	isolated := p99(w.requests(alone.pid(), from, nowNS()))
	alone.finish()
	target := isolated * 3 / 2

	service := start(fmt.Sprintf("XSCHED_SLO_US=%d", target.Microseconds()))
	var lows []*program
	for range 3 {
		lows = append(lows, w.saturating(options{}))
	}
	from = nowNS()
	service.iterates(100)
	to := nowNS()
	served, h := w.requests(service.pid(), from, to), w.heldIn(from, to)
	got, judged := p99(served), p99(served)
	if still := undisturbed(served); len(still) > 0 {
		judged = p99(still)
	}
	var had time.Duration
	for _, p := range lows {
		had += h.run[p.pid()]
	}
	best := oracle(h.window, served, length, target)
	part := had.Seconds() / best.Seconds()
	t.Logf("isolated P99 %v, target %v; beside 3 lows P99 %v of %d requests, %v of those that no other load disturbed; lows had %v, the oracle gives %v: %.1f %%; switching %.1f %%, idle %.1f %%",
		isolated, target, got, len(served), judged, had.Round(time.Millisecond), best.Round(time.Millisecond), 100*part,
		100*h.change.Seconds()/h.window.Seconds(), 100*h.idle.Seconds()/h.window.Seconds())
	if len(served) < int(0.9*hz*elapsed(from, to).Seconds()) {
		t.Errorf("%d requests in %v: the service does not keep up", len(served), h.window)
	}
	if judged > target {
		t.Errorf("P99 %v misses the target %v", judged, target)
	}
	// Neither service nor lows submit while other load has the processors.
	if (had + machine().in(from, to)).Seconds() < 0.9*best.Seconds() {
		t.Errorf("the lows had %.1f %% of what an oracle would give them, want 90 %%", 100*part)
	}
	for _, p := range append(lows, service) {
		p.finish()
	}
}
