// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gpumodel "xsched/internal/virtual/model"
)

// stops returns how often the daemon has suspended programs.
func (w *world) stops() uint64 {
	w.t.Helper()
	s, err := w.client.Stats(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return s.Suspends
}

// interruptions counts the requests of so many kernels, and how often another process began to run during them.
func (w *world) interruptions(pid, kernels int, from, to int64) (n, all int) {
	w.t.Helper()
	at, spans := w.recorded(pid, from, to)
	for i := 0; i+kernels <= len(at); i += kernels {
		all++
		for _, s := range spans {
			if s.PID != pid && s.Kind == gpumodel.KindRun && s.T0 >= at[i] && s.T0 < at[i+kernels-1] {
				n++
			}
		}
	}
	if all == 0 {
		w.t.Fatal("no request was finished")
	}
	return n, all
}

// TestLaunchBoundRequests: a request submitted kernel by kernel pays a context switch per gap under hardware timeslices.
// The policy learns this and suspends the low once per request instead, where requests do not gather on the device.
func TestLaunchBoundRequests(t *testing.T) {
	const kernels, us = 9, 30
	w := newWorld(t, "--policy", "HPF/in-time")
	low := w.tenant(options{}, 20000)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	// A busy host stretches some gaps, and the daemon then doubts what it has learnt of the program: one good round
	// is enough, each with a new program.
	const rounds = 4
	for round := 1; ; round++ {
		high := w.tenant(options{priority: 10}, us, "--feed", strconv.Itoa(kernels))
		w.waitLevel(high.pid(), 3)
		sliced, live := w.launchBound(high, "timeslice", kernels), w.launchBound(high, "live", kernels)
		high.finish()
		t.Logf("requests of %d kernels of %d us, ten times as long between them: timeslice %+v, live %+v", kernels, us, sliced, live)
		if sliced.stops <= 2 && live.stops >= uint64(live.n)/4 && live.interruptions <= sliced.interruptions/2 {
			break
		}
		if round == rounds {
			t.Errorf("no good round of %d", rounds)
			break
		}
	}
	low.finish()
}

// launchBoundRecord is the device's record of requests that were submitted kernel by kernel.
type launchBoundRecord struct {
	n             int
	interruptions float64 // per request
	stops         uint64
}

func (w *world) launchBound(high *program, mode string, kernels int) launchBoundRecord {
	w.t.Helper()
	w.must("mode", mode)
	high.send("rate 20")
	high.iterates(10) // the policy has learnt by then
	high.send("pause")
	high.expect("P", soon)
	before, from := w.stops(), nowNS()
	high.send("rate 20")
	high.iterates(30)
	high.send("pause")
	high.expect("P", soon)
	after := w.stops()
	interrupted, n := w.interruptions(high.pid(), kernels, from, nowNS())
	return launchBoundRecord{n, float64(interrupted) / float64(n), after - before}
}

// TestWaitedForRequestsStopNobody: timeslices suffice for requests of one kernel; the daemon suspends nobody. It
// makes no difference how the program waits: by synchronization, in a copy into pageable memory, or by polling.
func TestWaitedForRequestsStopNobody(t *testing.T) {
	for _, how := range []string{"sync", "copy", "poll"} {
		t.Run(how, func(t *testing.T) { waitedForRequestsStopNobody(t, how) })
	}
}

func waitedForRequestsStopNobody(t *testing.T, how string) {
	w := newWorld(t)
	high, low := w.tenant(options{priority: 10}, 3000, "--wait", how), w.tenant(options{}, 20000)
	w.waitLevel(high.pid(), 3)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	high.send("rate 20")
	high.iterates(3) // until it has joined, the daemon stops others for it
	// A program without a processor looks as if it were still submitting.
	before, from := w.stops(), nowNS()
	high.iterates(20)
	stops, delayed := w.stops()-before, machine().count(from, nowNS())
	t.Logf("%d stops for 20 requests; %d delays by other load", stops, delayed)
	if stops > 2+delayed {
		t.Errorf("%d stops for 20 requests", stops)
	}
	high.finish()
	low.finish()
}

// TestLongLaunchBoundRequests: while a long request is being submitted, the low runs in the driver's timeslices. When the
// program waits for the last kernel, the low is stopped.
func TestLongLaunchBoundRequests(t *testing.T) {
	const kernels, us = 48, 20
	w := newWorld(t)
	high := w.tenant(options{priority: 10}, us, "--feed", strconv.Itoa(kernels))
	low := w.tenant(options{}, 20000)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	high.send("rate 20")
	high.iterates(20)
	// Other load on this machine delays the program and the daemon: one good round is enough.
	for round := 1; ; round++ {
		high.send("rate 20")
		high.iterates(10) // again in step
		from := nowNS()
		high.iterates(20)
		high.send("pause")
		high.expect("P", soon)
		r := w.longRequests(high.pid(), low.pid(), kernels, from, nowNS())
		t.Logf("%d requests of %d kernels: the low runs for %.0f %% of their first half, and the last kernel ends %.2f ms after it came (medians)", r.n, kernels, 100*r.share, r.end)
		// Stopped for whole requests, the low would not run at all; with a tiny slice, both would mostly switch.
		// Natively the last kernel would wait for half a slice and the switch: 1.2 ms.
		if r.n >= 15 && r.share >= 0.7 && r.end <= 0.5 {
			break
		}
		if round == 4 {
			t.Errorf("the low runs for %.0f %% of the first half of a request, and the last kernel ends %.2f ms after it came", 100*r.share, r.end)
			break
		}
	}
	high.finish()
	low.finish()
}

// longRecord is the device's record of long requests.
type longRecord struct {
	n          int
	share, end float64 // medians: part of the first half in which the low ran; ms from the last submission to the end
	beside     float64 // part of the requests at whose last submission the low ran
}

// longRequests returns the record of the requests of a window.
func (w *world) longRequests(high, low, kernels int, from, to int64) (r longRecord) {
	w.t.Helper()
	at, spans := w.recorded(high, from, to)
	var shares, ends []float64
	beside := 0
	for i := 0; i < len(at); {
		last := i // kernels of a request come closely after each other
		for last+1 < len(at) && at[last+1]-at[last] < int64(5*time.Millisecond) {
			last++
		}
		if last-i == kernels-1 {
			half, ran, done := at[i]+(at[last]-at[i])/2, int64(0), at[last]
			for _, s := range spans {
				switch {
				case s.Kind != gpumodel.KindRun:
				case s.PID == low:
					ran += max(0, min(s.T1, half)-max(s.T0, at[i]))
					if s.T0 <= at[last] && s.T1 > at[last] {
						beside++
					}
				case s.PID == high && s.T0 < at[last]+int64(10*time.Millisecond):
					done = max(done, s.T1)
				}
			}
			shares, ends = append(shares, float64(ran)/float64(half-at[i])), append(ends, float64(done-at[last])/1e6)
		}
		i = last + 1
	}
	if r.n = len(shares); r.n == 0 {
		return r
	}
	slices.Sort(shares)
	slices.Sort(ends)
	r.share, r.end, r.beside = shares[r.n/2], ends[r.n/2], float64(beside)/float64(r.n)
	return r
}

// TestShortRequestsGather: the kernels of short launch-bound requests gather on the device, and go on doing so: the daemon
// sees that they did. The program's entry says why.
func TestShortRequestsGather(t *testing.T) {
	t.Parallel()
	const kernels, us = 20, 10
	w := newWorld(t)
	high := w.tenant(options{priority: 10}, us, "--feed", strconv.Itoa(kernels))
	low := w.tenant(options{}, 20000)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	high.send("rate 50")
	high.iterates(60)
	eventually(t, soon, "its kernels gather, and the daemon says why", func() bool {
		p := w.process(high.pid())
		if p == nil || len(p.Protection) != 1 {
			return false
		}
		s := p.Protection[0].Submission
		return p.Queues[0].Bursts > 20 && s.Strategy == "batches" && strings.HasPrefix(s.Reason, "20 kernels in ") && s.Launches == kernels
	})
	high.finish()
	low.finish()
}
