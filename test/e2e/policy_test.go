// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strconv"
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
	gpumodel "xsched/internal/virtual/model"
)

// held is the use of the device in a window, from the device's timeline.
type held struct {
	window time.Duration
	run    map[int]time.Duration
	idle   time.Duration // no runnable work
	change time.Duration // from one process to another
}

// heldIn adds up the timeline of [from, to). A gap in the timeline fails the test.
func (w *world) heldIn(from, to int64) held {
	w.t.Helper()
	spans, err := w.gpu.Timeline(model.Time(from), model.Time(to))
	if err != nil {
		w.t.Fatal(err)
	}
	h := held{window: time.Duration(to - from), run: map[int]time.Duration{}}
	at := from
	for _, s := range spans {
		if s.Device != 0 {
			continue
		}
		if s.T0 > at {
			w.t.Fatalf("the device's timeline has a hole of %v", time.Duration(s.T0-at))
		}
		at = s.T1
		d := time.Duration(min(s.T1, to) - max(s.T0, from))
		switch s.Kind {
		case gpumodel.KindRun:
			h.run[s.PID] += d
		case gpumodel.KindSwitch:
			h.change += d
		default:
			h.idle += d
		}
	}
	return h
}

// saturating starts a tenant with most of a second of queued work, so that load on this machine never leaves the
// device idle.
func (w *world) saturating(o options) *program {
	w.t.Helper()
	p := w.tenant(o, 20000, "--depth", "32")
	p.send("loop")
	w.waitLevel(p.pid(), 3)
	eventually(w.t, soon, "the tenant makes progress", func() bool { return p.iterationsAfter(0) > 0 })
	return p
}

// TestLongSharesOnTheDevice: two saturating tenants with shares 75 and 25 get the device 3 to 1 and lose little of it
// to context switches, with hardware timeslices and with suspension. Suspension takes the daemon's CPU time, so
// its ratio is less exact: each delay by other load may lengthen one tenant's turn.
func TestLongSharesOnTheDevice(t *testing.T) {
	for _, c := range []struct {
		mode   string
		within float64
	}{{"live", 0.03}, {"suspend", 0.10}} {
		t.Run(c.mode, func(t *testing.T) {
			w := newWorld(t, "--policy", "UP", "--mode", c.mode)
			most := w.saturating(options{args: []string{"--share", "75"}})
			least := w.saturating(options{args: []string{"--share", "25"}})
			if c.mode == "live" {
				eventually(t, soon, "the slices are in force", func() bool {
					return w.account(most.pid()).SliceNS == 3*w.account(least.pid()).SliceNS
				})
			}
			from := nowNS()
			time.Sleep(4 * time.Second)
			to := nowNS()
			h, late := w.heldIn(from, to), time.Duration(0)
			if c.mode == "suspend" {
				late = machine().in(from, to)
			}
			a, b := h.run[most.pid()], h.run[least.pid()]
			ratio, kept := a.Seconds()/b.Seconds(), (a+b).Seconds()/h.window.Seconds()
			t.Logf("75:25 got %v and %v of %v, %.3f to 1; kept %.1f %%, switching %.1f %%, idle %.1f %%; delays of the machine %v", a.Round(time.Millisecond), b.Round(time.Millisecond),
				h.window.Round(time.Millisecond), ratio, 100*kept, 100*h.change.Seconds()/h.window.Seconds(), 100*h.idle.Seconds()/h.window.Seconds(), late)
			low, high := 3*(1-c.within), 3*(1+c.within)
			if (a+late).Seconds() < low*(b-late).Seconds() || (a-late).Seconds() > high*(b+late).Seconds() {
				t.Errorf("the device was shared %.3f to 1, want 3 to 1 within %.0f %% and %v", ratio, 100*c.within, late)
			}
			if kept < 0.95 {
				t.Errorf("%.1f %% of the device was kept, want 95 %%", 100*kept)
			}
			most.finish()
			least.finish()
		})
	}
}

// TestPolicyChangesUnderLoad switches through all policies in both orders while programs with different hints
// run. A policy is in force when the command returns, every program progresses, and every result is correct.
func TestPolicyChangesUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--starvation-bound", "300ms")
	tenants := []*program{
		w.tenant(options{priority: 10, env: []string{"XSCHED_SLO_US=20000", "XSCHED_AUTO_XQUEUE_DEADLINE=20000"}}, 2000),
		w.tenant(options{priority: 0, args: []string{"--share", "75"}}, 5000, "--depth", "4"),
		w.tenant(options{priority: -5, args: []string{"--share", "25"}, env: []string{"XSCHED_AUTO_XQUEUE_LAXITY=5000"}}, 20000, "--depth", "2"),
		w.tenant(options{priority: -5, level: "1", env: []string{"XSCHED_GANG=crew"}}, 1000, "--depth", "4"),
		w.tenant(options{priority: -5, env: []string{"XSCHED_GANG=crew"}}, 1000, "--depth", "4"),
	}
	tenants[0].send("rate 50")
	for _, p := range tenants[1:] {
		p.send("loop")
	}
	names := policy.Names()
	order := append([]string{}, names...)
	for i := range names {
		order = append(order, names[len(names)-1-i])
	}
	for _, name := range order {
		w.must("policy", name)
		at := nowNS()
		list, err := w.client.List(t.Context())
		if err != nil || list.Policy != name || len(list.Processes) != len(tenants) {
			t.Fatalf("after policy %s: %v, %s with %d programs", name, err, list.Policy, len(list.Processes))
		}
		for i, p := range tenants {
			// SPUP throttles a program that used up its share; the starvation bound covers the others.
			eventually(t, soon, "tenant "+strconv.Itoa(i)+" progresses under "+name, func() bool { return w.ranIn(p.pid(), at, nowNS()) > time.Millisecond })
		}
	}
	for _, p := range tenants {
		if known := w.process(p.pid()); known == nil {
			t.Errorf("process %d is lost", p.pid())
		}
		p.finish()
	}
}
