// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"sort"
	"time"

	"xsched/internal/report"
)

// pictureSpan is how much of a mode the report's timeline shows.
const pictureSpan = 100 * time.Millisecond

// holdGrace is how long a suspension by hand may take to come into force.
const holdGrace = 50 * time.Millisecond

// holdLows suspends the low tenants by hand while they have work to do, and
// asks the device's record whether they really stood still. It goes the same
// way as a policy's suspension: engine, reconciler, driver call.
func (r *run) holdLows(ctx context.Context) error {
	high, lows := r.tenants[0], r.tenants[1:]
	if err := high.pause(ctx); err != nil {
		return err
	}
	if _, err := r.daemon.SetMode(ctx, modeOf(r.deep)); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	for _, t := range lows {
		if err := t.tell("loop"); err != nil {
			return err
		}
	}
	if err := sleep(ctx, r.edge.head); err != nil {
		return err
	}
	h := &HoldEvidence{Ran: map[int]time.Duration{}}
	r.hold = h
	for _, t := range lows {
		if _, err := r.daemon.Suspend(ctx, t.pid()); err != nil {
			return fmt.Errorf("suspend %s: %w", t.name, err)
		}
	}
	ok, err := r.allHeld(ctx)
	if err != nil {
		return err
	}
	// The list tells what is wanted; the driver's calls take under a millisecond
	// each. Whoever still runs after this was not stopped.
	if err := sleep(ctx, holdGrace); err != nil {
		return err
	}
	h.Window.From = monotonic()
	if ok {
		if err := sleep(ctx, r.holdFor); err != nil {
			return err
		}
	} else {
		h.Error = errNotConfirmed
	}
	h.Window.To = monotonic()
	for _, t := range lows {
		if _, err := r.daemon.Resume(ctx, t.pid()); err != nil {
			return fmt.Errorf("resume %s: %w", t.name, err)
		}
	}
	// Three lows share the device, perhaps in long turns: time for each.
	again := Window{From: h.Window.To}
	for range 40 {
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		again.To = monotonic()
		segs, _, err := r.device.Record(ctx, Window{h.Window.From, again.To})
		if err != nil {
			return fmt.Errorf("read the device's record: %w", err)
		}
		h.Resumed = true
		for _, t := range lows {
			h.Ran[t.pid()] = held(segs, t.pid(), h.Window)
			h.Resumed = h.Resumed && held(segs, t.pid(), again) > 0
		}
		if h.Resumed {
			break
		}
	}
	return nil
}

// allHeld waits until the daemon says of every low tenant that it stands still.
func (r *run) allHeld(ctx context.Context) (bool, error) {
	limit := time.Now().Add(2 * time.Second)
	for time.Now().Before(limit) {
		procs, err := r.counters(ctx)
		if err != nil {
			return false, err
		}
		all := true
		for _, t := range r.tenants[1:] {
			p := procs[t.pid()]
			for _, q := range p.Queues {
				all = all && q.State == "held"
			}
			all = all && p.Held && len(p.Queues) > 0
		}
		if all {
			return true, nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return false, err
		}
	}
	return false, nil
}

// finish lets the tenants come to rest, reads everybody's counts, and ends them.
func (r *run) finish(ctx context.Context) (*Evidence, error) {
	if _, err := r.daemon.SetMode(ctx, modeOf(ModeNative)); err != nil {
		return nil, fmt.Errorf("set mode: %w", err)
	}
	for _, t := range r.tenants {
		if err := t.pause(ctx); err != nil {
			return nil, err
		}
	}
	ev := &Evidence{Modes: r.modes, Modal: r.modal, Hold: r.hold, Slices: r.compared, Recorded: r.device != nil, Deep: r.deep, NoSlices: r.noSlices}
	// The shims publish their counts within a tick; what is unequal after that
	// stays unequal.
	limit := time.Now().Add(2 * time.Second)
	for {
		if err := r.countAll(ctx, ev); err != nil {
			return nil, err
		}
		if r.device == nil || len(unequalCounts(ev)) == 0 || time.Now().After(limit) {
			break
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
	for i, t := range r.tenants {
		e := &ev.Tenants[i]
		e.Died = t.quit(10 * time.Second)
		own := t.report()
		e.Checksum, e.Own = own.ok, own.launches
		if r.device == nil {
			// Without a device that counts, the checksum counts: it is over every kernel.
			e.Executed = own.launches
		}
	}
	if r.device != nil {
		ev.Reached = waits(r.waits, r.tenants[0].pid(), windows(r.blocks, r.deep, r.edge))
	}
	return ev, nil
}

func (r *run) countAll(ctx context.Context, ev *Evidence) error {
	procs, err := r.counters(ctx)
	if err != nil {
		return err
	}
	var onDevice map[int]DeviceProcess
	if r.device != nil {
		if onDevice, err = r.device.Processes(ctx); err != nil {
			return fmt.Errorf("read the device's figures: %w", err)
		}
	}
	ev.Tenants = nil
	for _, t := range r.tenants {
		c := procs[t.pid()].Counters
		ev.Tenants = append(ev.Tenants, TenantEvidence{
			Name: t.name, PID: t.pid(),
			Hooked: c.HookedCalls, Launches: c.Launches, Executed: onDevice[t.pid()].Kernels,
			Recoveries: c.Recoveries, Attached: procs[t.pid()].Attached,
		})
	}
	return nil
}

// summary computes the numbers from what was gathered.
func (r *run) summary() *Scenario {
	s := &Scenario{Name: r.name(), Lows: r.lows, Deep: r.deep, Attached: r.attached, Modes: map[string]*Mode{}, raw: map[string]*rawMode{}}
	sort.Slice(r.segments, func(i, j int) bool { return r.segments[i].From < r.segments[j].From })
	s.Remaps, s.HighStops = r.modal[r.deep].Remaps, r.modal[r.deep].HighStops
	high, lows := r.tenants[0], r.tenants[1:]
	s.LowAloneRate = rate(lows[0].taken(), windows(r.blocks, lowAlone, r.edge))
	for _, name := range r.modes {
		ws := windows(r.blocks, name, r.edge)
		d := latencies(high.taken(), ws)
		m := &Mode{High: report.Summarize(d), Seconds: total(ws).Seconds(), Preemptions: r.modal[name].Preemptions}
		m.Offered = int(m.Seconds * r.work.HighRate)
		if name != ModeAlone && s.LowAloneRate > 0 {
			m.Low = &Low{}
			for _, t := range lows {
				v := rate(t.taken(), ws)
				m.Low.Rate += v
				m.Low.Rates = append(m.Low.Rates, v)
			}
			m.Low.Kept = m.Low.Rate / s.LowAloneRate
		}
		raw := &rawMode{latencies: d}
		if r.device != nil && len(ws) > 0 {
			m.GPU = split(r.segments, ws, high.pid())
			m.Wait = report.Summarize(waits(r.waits, high.pid(), ws))
			mid := ws[0].From + (ws[0].To-ws[0].From-int64(pictureSpan))/2
			w := Window{mid, mid + int64(pictureSpan)}
			raw.span, raw.lanes = pictureSpan, lanesOf(r.tenants, cut(r.segments, w), r.waits, w, name == ModeAlone)
		}
		s.Modes[name], s.raw[name] = m, raw
	}
	return s
}
