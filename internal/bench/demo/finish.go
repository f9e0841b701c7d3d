// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"sort"
	"time"

	"xsched/internal/bench"
	"xsched/internal/report"
)

// pictureSpan is the length of a timeline in the report.
const pictureSpan = 100 * time.Millisecond

// holdGrace is how long a manual suspension may take to take effect.
const holdGrace = 50 * time.Millisecond

// holdTries allows for a daemon that other load delays: its suspensions end when their lease does.
const holdTries = 3

// holdLows suspends the low tenants manually while they have work, and checks in the device's
// record that they did not run. It takes the same path as a policy's suspension.
func (r *run) holdLows(ctx context.Context) error {
	high, lows := r.tenants[0], r.tenants[1:]
	if err := high.Pause(ctx); err != nil {
		return err
	}
	if _, err := r.daemon.SetMode(ctx, modeOf(r.deep)); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	for _, t := range lows {
		if err := t.Tell("loop"); err != nil {
			return err
		}
	}
	if err := bench.Sleep(ctx, r.edge.Head); err != nil {
		return err
	}
	for try := range holdTries {
		r.hold = &HoldEvidence{Try: try + 1, Ran: map[int]time.Duration{}}
		if err := r.holdOnce(ctx, r.hold, lows); err != nil || r.hold.stopped() {
			return err
		}
	}
	return nil
}

// holdOnce suspends the low tenants once, and resumes them.
func (r *run) holdOnce(ctx context.Context, h *HoldEvidence, lows []*bench.Tenant) error {
	for _, t := range lows {
		if _, err := r.daemon.Suspend(ctx, t.PID()); err != nil {
			return fmt.Errorf("suspend %s: %w", t.Name, err)
		}
	}
	ok, err := r.allHeld(ctx)
	if err != nil {
		return err
	}
	// The list shows the desired state; a driver call takes less than a millisecond. A process that
	// runs after this was not suspended.
	if err := bench.Sleep(ctx, holdGrace); err != nil {
		return err
	}
	h.Window.From = bench.Monotonic()
	if ok {
		if err := bench.Sleep(ctx, r.holdFor); err != nil {
			return err
		}
	} else {
		h.Error = errNotConfirmed
	}
	h.Window.To = bench.Monotonic()
	for _, t := range lows {
		if _, err := r.daemon.Resume(ctx, t.PID()); err != nil {
			return fmt.Errorf("resume %s: %w", t.Name, err)
		}
	}
	// Three lows share the device, perhaps in long turns: leave time for each.
	again := bench.Window{From: h.Window.To}
	_, err = bench.Until(ctx, 2*time.Second, 50*time.Millisecond, func() (bool, error) {
		again.To = bench.Monotonic()
		segs, _, err := r.device.Record(ctx, bench.Window{From: h.Window.From, To: again.To})
		if err != nil {
			return false, fmt.Errorf("read the device's record: %w", err)
		}
		h.Resumed = true
		for _, t := range lows {
			h.Ran[t.PID()] = bench.Held(segs, t.PID(), h.Window)
			h.Resumed = h.Resumed && bench.Held(segs, t.PID(), again) > 0
		}
		return h.Resumed, nil
	})
	return err
}

// allHeld waits until the daemon reports every low tenant as suspended.
func (r *run) allHeld(ctx context.Context) (bool, error) {
	return bench.Until(ctx, 2*time.Second, 5*time.Millisecond, func() (bool, error) {
		procs, err := r.counters(ctx)
		if err != nil {
			return false, err
		}
		all := true
		for _, t := range r.tenants[1:] {
			p := procs[t.PID()]
			for _, q := range p.Queues {
				all = all && q.State == "held"
			}
			all = all && p.Held && len(p.Queues) > 0
		}
		return all, nil
	})
}

// finish pauses the tenants, reads all counts, and ends the tenants.
func (r *run) finish(ctx context.Context) (*Evidence, error) {
	if _, err := r.daemon.SetMode(ctx, modeOf(ModeNative)); err != nil {
		return nil, fmt.Errorf("set mode: %w", err)
	}
	for _, t := range r.tenants {
		if err := t.Pause(ctx); err != nil {
			return nil, err
		}
	}
	ev := &Evidence{Modes: r.modes, Modal: r.modal, Hold: r.hold, Slices: r.compared, Recorded: r.device != nil, Deep: r.deep, NoSlices: r.noSlices}
	// The shims publish their counts within a tick; counts that differ after that stay different.
	if _, err := bench.Until(ctx, 2*time.Second, 50*time.Millisecond, func() (bool, error) {
		err := r.countAll(ctx, ev)
		return r.device == nil || len(unequalCounts(ev)) == 0, err
	}); err != nil {
		return nil, err
	}
	for i, t := range r.tenants {
		e := &ev.Tenants[i]
		e.Died = t.Quit(10 * time.Second)
		own := t.Final()
		e.Checksum, e.Own = own.OK, own.Launches
		if r.device == nil {
			// Without a device record the checksum, which covers every kernel, is the evidence.
			e.Executed = own.Launches
		}
	}
	if r.device != nil {
		ev.Reached = bench.WaitsOf(r.waits, r.tenants[0].PID(), bench.Windows(r.blocks, r.deep, r.edge))
	}
	return ev, nil
}

func (r *run) countAll(ctx context.Context, ev *Evidence) error {
	procs, err := r.counters(ctx)
	if err != nil {
		return err
	}
	var onDevice map[int]bench.DeviceProcess
	if r.device != nil {
		if onDevice, err = r.device.Processes(ctx); err != nil {
			return fmt.Errorf("read the device's figures: %w", err)
		}
	}
	ev.Tenants = nil
	for _, t := range r.tenants {
		c := procs[t.PID()].Counters
		ev.Tenants = append(ev.Tenants, TenantEvidence{
			Name: t.Name, PID: t.PID(),
			Hooked: c.HookedCalls, Launches: c.Launches, Executed: onDevice[t.PID()].Kernels,
			Recoveries: c.Recoveries, Attached: procs[t.PID()].Attached,
		})
	}
	return nil
}

// summary computes the result.
func (r *run) summary() *Scenario {
	s := &Scenario{Name: r.name(), Lows: r.lows, Deep: r.deep, Attached: r.attached, Modes: map[string]*Mode{}, raw: map[string]*rawMode{}}
	sort.Slice(r.segments, func(i, j int) bool { return r.segments[i].From < r.segments[j].From })
	s.Remaps, s.HighStops = r.modal[r.deep].Remaps, r.modal[r.deep].HighStops
	high, lows := r.tenants[0], r.tenants[1:]
	s.LowAloneRate = bench.Rate(lows[0].Samples(), bench.Windows(r.blocks, lowAlone, r.edge))
	for _, name := range r.modes {
		ws := bench.Windows(r.blocks, name, r.edge)
		d := bench.Latencies(high.Samples(), ws)
		m := &Mode{High: report.Summarize(d), Seconds: bench.Total(ws).Seconds(), Preemptions: r.modal[name].Preemptions}
		m.Offered = int(m.Seconds * r.work.HighRate)
		if name != ModeAlone && s.LowAloneRate > 0 {
			m.Low = &Low{}
			for _, t := range lows {
				v := bench.Rate(t.Samples(), ws)
				m.Low.Rate += v
				m.Low.Rates = append(m.Low.Rates, v)
			}
			m.Low.Kept = m.Low.Rate / s.LowAloneRate
		}
		raw := &rawMode{Latencies: d}
		if r.device != nil && len(ws) > 0 {
			m.GPU = bench.SplitTime(r.segments, ws, high.PID())
			m.Wait = report.Summarize(bench.WaitsOf(r.waits, high.PID(), ws))
			mid := ws[0].From + (ws[0].To-ws[0].From-int64(pictureSpan))/2
			w := bench.Window{From: mid, To: mid + int64(pictureSpan)}
			raw.Span, raw.Lanes = pictureSpan, lanesOf(r.tenants, bench.Cut(r.segments, w), r.waits, high.Samples(), w, name == ModeAlone)
		}
		s.Modes[name], s.raw[name] = m, raw
	}
	return s
}
