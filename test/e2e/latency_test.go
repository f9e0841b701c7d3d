// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"math"
	"testing"

	"xsched/internal/control"
)

// requestsOf lets a tenant work, and returns its figures before and after, once the daemon knows all of its
// requests: its busy periods, as its library counts them. Nearly every iteration, a launch and a wait, is one:
// two are one period where the idle watcher finds the end of the first, after a wait of more than 100 ms, while
// the program submits the second (try_idle in shim/core/work_busy.c).
func (w *world) requestsOf(p *program, during func()) (before, after *control.Process) {
	w.t.Helper()
	before = w.process(p.pid())
	from := nowNS()
	p.send("loop")
	during()
	p.send("pause")
	p.expect("P", soon)
	done := uint64(p.iterationsAfter(from))
	var n uint64
	eventually(w.t, soon, "the program is idle", func() bool {
		after = w.process(p.pid())
		n = (after.Queues[0].Transitions - before.Queues[0].Transitions) / 2
		return after.State == control.StateIdle && n >= done*9/10
	})
	if got := figuresOf(after).Requests - figuresOf(before).Requests; got != n || n > done {
		w.t.Errorf("%d requests, %d busy periods, %d iterations", got, n, done)
	}
	return before, after
}

// figuresOf returns the latency of a process; the zero value before its first request.
func figuresOf(p *control.Process) control.Latency {
	if p.Latency == nil {
		return control.Latency{}
	}
	return *p.Latency
}

// TestRequestLatency: every request of a program counts, alone with a quiet doorbell and beside a program that
// preempts it. Its time is that of the device's record at least, and what it waits for others is apart.
func TestRequestLatency(t *testing.T) {
	w := newWorld(t, "--mode", "suspend")
	low := w.tenant(options{env: []string{"XSCHED_SLO_US=1"}}, 1000, "--depth", "1")
	w.waitLevel(low.pid(), 3)
	quiet := w.tenant(options{}, 1000, "--depth", "1", "--device", "1")
	w.waitLevel(quiet.pid(), 3)

	from := nowNS()
	before, after := w.requestsOf(quiet, func() { quiet.iterates(50) })
	was, is := figuresOf(before), figuresOf(after)
	if is.Source != control.SourceBusy || is.Total.Count != is.Requests || is.Total.Recent != is.Requests {
		t.Errorf("%s: %d requests, %d measured, %d recently", is.Source, is.Requests, is.Total.Count, is.Total.Recent)
	}
	if took := is.Total.SumUS - was.Total.SumUS; took*1e3 < float64(w.ranIn(quiet.pid(), from, nowNS())) || took*1e3 > float64(nowNS()-from) {
		t.Errorf("%.0f us in requests, %v on the device, %d us in all", took, w.ranIn(quiet.pid(), from, nowNS()), (nowNS()-from)/1e3)
	}
	if is.Wait.SumUS != 0 || after.Preemptions != 0 || after.LostNS != 0 || after.SLO != nil {
		t.Errorf("alone it waited for %v us, with %d preemptions of %d ns, target %+v", is.Wait.SumUS, after.Preemptions, after.LostNS, after.SLO)
	}
	if is.Total.P50US < 1000*15/16 || is.Total.P99US < is.Total.P50US || is.Total.MaxUS < is.Total.P99US {
		t.Errorf("requests of 1000 us: %+v", is.Total)
	}
	if after.User == "" {
		t.Error("no user")
	}

	high := w.tenant(options{priority: 10}, 20000, "--depth", "1")
	w.waitLevel(high.pid(), 3)
	before, after = w.requestsOf(low, func() {
		low.iterates(5)
		high.send("loop")
		high.iterates(10)
		if p := w.process(high.pid()); p.State != control.StateRunning && p.State != control.StateIdle {
			t.Errorf("the high is %s", p.State)
		}
		high.send("pause")
		high.expect("P", soon)
		low.iterates(5)
	})
	was, is = figuresOf(before), figuresOf(after)
	if is.Wait.SumUS <= was.Wait.SumUS || after.Preemptions == before.Preemptions || after.LostNS <= before.LostNS {
		t.Errorf("preempted it waited for %v us, with %d preemptions of %d ns", is.Wait.SumUS, after.Preemptions, after.LostNS)
	}
	if parts := is.Wait.SumUS + is.Own.SumUS; math.Abs(parts-is.Total.SumUS) > 1 {
		t.Errorf("wait %v and own time %v are not the total %v", is.Wait.SumUS, is.Own.SumUS, is.Total.SumUS)
	}
	slo := after.SLO
	if slo == nil || slo.TargetUS != 1 || slo.Objective != 0.99 || slo.Met != 0 || slo.Missed != is.Total.Count || slo.Attainment != 0 || math.Abs(slo.BudgetLeft+99) > 1e-6 {
		t.Errorf("a target of 1 us: %+v of %d requests", slo, is.Total.Count)
	}
	if h := figuresOf(w.process(high.pid())); h.Wait.SumUS != 0 || h.Requests < 10 {
		t.Errorf("the high waited for %v us in %d requests", h.Wait.SumUS, h.Requests)
	}
	for _, p := range []*program{high, low, quiet} {
		p.finish()
	}
}
