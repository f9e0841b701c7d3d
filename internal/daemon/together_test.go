// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/daemon"
	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// requests returns the requests to the firmware of GPU 0.
func (w *world) requests(t *testing.T) uint64 {
	t.Helper()
	st, err := w.device.Stats()
	if err != nil || len(st.Devices) == 0 {
		t.Fatal(st, err)
	}
	return st.Devices[0].Requests
}

// lastRun returns when any of the processes last held GPU 0 since a time.
func (w *world) lastRun(t *testing.T, from model.Time, pids map[int]bool) (last model.Time) {
	t.Helper()
	spans, err := w.device.Timeline(from, clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range spans {
		if s.Device == 0 && s.Kind == gpumodel.KindRun && pids[s.PID] {
			last = max(last, model.Time(s.T1))
		}
	}
	return last
}

// One decision that stops several lows makes one request, and so does the one that resumes them. A driver
// that refuses that gets a request for each.
func TestLongLowsStopTogether(t *testing.T) {
	for _, row := range []struct {
		n     int
		fault string
	}{{1, ""}, {3, ""}, {3, "own-clients"}} {
		n := row.n
		t.Setenv("XSCHED_CACHE", t.TempDir())
		w := newWorld(t)
		w.serve(t, func(o *daemon.Options) { o.Mode, o.StarvationBound = model.ModeOff, time.Hour })
		high := w.tenant(t, "high", 100*time.Microsecond, true, prio(10))
		lows := map[int]bool{}
		for range n {
			low := w.tenant(t, "low", 20*time.Millisecond, true, prio(-10))
			lows[low.Process.Pid] = true
			low.say(t, "loop")
		}
		high.say(t, "loop")
		await(t, "all at work", func() bool {
			for pid := range lows {
				if w.account(t, pid).Kernels < 2 {
					return false
				}
			}
			return w.account(t, high.Process.Pid).Kernels > 2
		})
		if row.fault != "" {
			if err := w.device.SetFault(row.fault); err != nil {
				t.Fatal(err)
			}
		}
		stopped := func(yes bool) func() bool {
			return func() bool {
				for pid := range lows {
					if (w.account(t, pid).Stopped == 8) != yes {
						return false
					}
				}
				return true
			}
		}
		const rounds = 20
		var took []time.Duration
		first := w.requests(t)
		before, err := w.ctl.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range rounds {
			from := clock.Now()
			if _, err := w.ctl.SetMode(ctx, control.ModeRequest{Mode: "level", Level: 3}); err != nil {
				t.Fatal(err)
			}
			await(t, "the lows stop", stopped(true))
			time.Sleep(2 * time.Millisecond)
			took = append(took, w.lastRun(t, from, lows).Sub(from))
			if _, err := w.ctl.SetMode(ctx, control.ModeRequest{Mode: "off"}); err != nil {
				t.Fatal(err)
			}
			await(t, "the lows run", stopped(false))
			time.Sleep(5 * time.Millisecond)
		}
		after, err := w.ctl.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		h := after.PreemptTime[3]
		made, shared := w.requests(t)-first, after.Shared-before.Shared
		t.Logf("%d lows %s: %d rounds, %d requests; decision to stopped P50 %.0f us, P90 %.0f us; the lows held the GPU for %v (least); %d shared, %d split",
			n, row.fault, rounds, made, h.P50US, h.P90US, least(took), shared, after.Split-before.Split)
		switch {
		case row.fault != "" && (after.Shared != before.Shared || after.Split == before.Split):
			t.Errorf("%d operations were shared, %d repeated", after.Shared-before.Shared, after.Split-before.Split)
		case row.fault == "" && n > 1 && shared == 0: // a loaded machine delays some workers, not all of them in every round
			t.Errorf("%d lows: no request for several of them", n)
		case n == 1 && after.Shared != 0:
			t.Errorf("one low shared %d operations", after.Shared)
		}
		if after.DeviceErrors != 0 {
			t.Errorf("%d device errors", after.DeviceErrors)
		}
	}
}

func least(d []time.Duration) time.Duration {
	m := d[0]
	for _, x := range d {
		m = min(m, x)
	}
	return m
}
