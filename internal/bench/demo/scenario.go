// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"xsched/internal/bench"
	"xsched/internal/control"
	"xsched/internal/model"
)

// Daemon is what a run needs of `xsched serve`; *client.Client is one.
type Daemon interface {
	SetMode(ctx context.Context, r control.ModeRequest) (control.ModeReply, error)
	List(ctx context.Context) (control.List, error)
	Stats(ctx context.Context) (control.Stats, error)
	Suspend(ctx context.Context, pid int) (control.ProcessReply, error)
	Resume(ctx context.Context, pid int) (control.ProcessReply, error)
	Attach(ctx context.Context, pid int) (control.ProcessReply, error)
}

// plan configures one scenario.
type plan struct {
	lows     int
	modes    []string
	rounds   int
	block    time.Duration
	lowBlock time.Duration // length of the low-alone blocks
	edge     bench.Trim
	holdFor  time.Duration
	seed     uint64
	work     bench.Workload
	progress func(step string)

	deep     string // the mode that stops in mid-kernel; default ModeLv3
	noSlices bool   // the device has no hardware timeslices
	attached bool   // the low tenants have no shim
}

// steps is how often progress is called.
func (p *plan) steps() int { return p.rounds*(len(p.modes)+1) + 1 }

// run is one scenario while it runs.
type run struct {
	plan
	daemon  Daemon
	device  bench.Device // nil: no ground truth
	tenants []*bench.Tenant

	blocks   []bench.Block
	segments []bench.Segment
	waits    []bench.Wait
	modal    map[string]ModeEvidence
	compared []SliceEvidence
	hold     *HoldEvidence
}

// modeOf returns the daemon's mode for a mode of the benchmark.
func modeOf(name string) control.ModeRequest {
	switch name {
	case ModeLv1:
		return control.ModeRequest{Mode: string(model.ModeLevel), Level: int(model.LevelBlock)}
	case ModeLv2, ModeLv3:
		return control.ModeRequest{Mode: string(model.ModeLive)}
	default:
		return control.ModeRequest{Mode: string(model.ModeOff)}
	}
}

// scenario measures one set of tenants in all modes and proves it. start must
// start the i-th tenant; 0 is the high one.
func scenario(ctx context.Context, p plan, d Daemon, dev bench.Device, start func(i int) (*bench.Tenant, error)) (*Scenario, error) {
	bench.Default(&p.deep, ModeLv3)
	r := &run{plan: p, daemon: d, device: dev, modal: map[string]ModeEvidence{}}
	defer func() {
		for _, t := range r.tenants {
			t.Kill()
		}
	}()
	for i := range p.lows + 1 {
		t, err := start(i)
		if err != nil {
			return nil, err
		}
		r.tenants = append(r.tenants, t)
	}
	for _, t := range r.tenants {
		if err := t.Await(ctx, "R", 30*time.Second); err != nil {
			return nil, err
		}
	}
	if err := r.attachLows(ctx); err != nil {
		return nil, err
	}
	if err := r.joined(ctx); err != nil {
		return nil, err
	}
	for _, mode := range bench.Schedule(append(append([]string(nil), p.modes...), lowAlone), p.rounds, p.seed) {
		p.progress(p.name() + ", " + mode)
		if err := r.oneBlock(ctx, mode); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", p.name(), mode, err)
		}
	}
	p.progress(p.name() + ", proof")
	if slices.Contains(p.modes, p.deep) && r.device != nil {
		if err := r.holdLows(ctx); err != nil {
			return nil, fmt.Errorf("%s, suspension by hand: %w", p.name(), err)
		}
	}
	ev, err := r.finish(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name(), err)
	}
	s := r.summary()
	s.Proof, err = prove(s.Name, ev)
	return s, err
}

// attachLows puts low tenants without a shim under the daemon's control.
func (r *run) attachLows(ctx context.Context) error {
	if !r.attached {
		return nil
	}
	for _, t := range r.tenants[1:] {
		var last error
		ok, err := bench.Until(ctx, 5*time.Second, 50*time.Millisecond, func() (bool, error) {
			_, last = r.daemon.Attach(ctx, t.PID())
			return last == nil, nil
		})
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("attach to %s: %w", t.Name, last)
		}
	}
	return nil
}

// joined waits until the daemon controls every tenant, through its shim or attached. A tenant with an
// inert shim never joins, so there is no point in measuring it.
func (r *run) joined(ctx context.Context) error {
	var missing *bench.Tenant
	ok, err := bench.Until(ctx, 3*time.Second, 50*time.Millisecond, func() (bool, error) {
		procs, err := r.counters(ctx)
		missing = nil
		for i, t := range r.tenants {
			p := procs[t.PID()]
			if known := p.Counters.HookedCalls > 0 || p.Attached && r.attached && i > 0; !known && missing == nil {
				missing = t
			}
		}
		return missing == nil, err
	})
	if err != nil || ok {
		return err
	}
	return fmt.Errorf("%w (%s): shim intercepts: the shim in %s (pid %d) is inert: the program uses the GPU and the daemon does not know it",
		bench.ErrProof, r.name(), missing.Name, missing.PID())
}

// oneBlock runs one block: bring all tenants into the mode's state, then measure.
func (r *run) oneBlock(ctx context.Context, mode string) error {
	high, lows := r.tenants[0], r.tenants[1:]
	if err := high.Pause(ctx); err != nil {
		return err
	}
	if _, err := r.daemon.SetMode(ctx, modeOf(mode)); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	for i, t := range lows {
		if mode == ModeAlone || mode == lowAlone && i > 0 {
			if err := t.Pause(ctx); err != nil {
				return err
			}
		} else if err := t.Tell("loop"); err != nil {
			return err
		}
	}
	length := r.lowBlock
	if mode != lowAlone {
		length = r.block
		if err := high.Tell(fmt.Sprintf("rate %g", r.work.HighRate)); err != nil {
			return err
		}
	}
	b := bench.Block{Mode: mode, From: bench.Monotonic()}
	if err := bench.Sleep(ctx, r.edge.Head); err != nil {
		return err
	}
	before, err := r.counted(ctx)
	if err != nil {
		return err
	}
	if mode == r.deep && !r.noSlices {
		if err := r.compareSlices(ctx); err != nil {
			return err
		}
	}
	if err := bench.Sleep(ctx, time.Duration(b.From+int64(length)-bench.Monotonic())); err != nil {
		return err
	}
	b.To = bench.Monotonic()
	after, err := r.counted(ctx)
	if err != nil {
		return err
	}
	r.modal[mode] = r.modal[mode].plus(before, after)
	r.blocks = append(r.blocks, b)
	if r.device != nil {
		segs, waits, err := r.device.Record(ctx, bench.Window{From: b.From, To: b.To})
		if err != nil {
			return fmt.Errorf("read the device's record: %w", err)
		}
		r.segments = append(r.segments, segs...)
		r.waits = append(r.waits, waits...)
	}
	return nil
}

// plus adds what happened between two counts.
func (m ModeEvidence) plus(before, after ModeEvidence) ModeEvidence {
	return ModeEvidence{
		Preemptions: m.Preemptions + after.Preemptions - before.Preemptions,
		Suspends:    m.Suspends + after.Suspends - before.Suspends,
		Deep:        m.Deep + after.Deep - before.Deep,
		GateWaits:   m.GateWaits + after.GateWaits - before.GateWaits,
		HighStops:   m.HighStops + after.HighStops - before.HighStops,
		Remaps:      m.Remaps + after.Remaps - before.Remaps,
	}
}

// counted reads all counters that a mode changes.
func (r *run) counted(ctx context.Context) (ModeEvidence, error) {
	var m ModeEvidence
	stats, err := r.daemon.Stats(ctx)
	if err != nil {
		return m, fmt.Errorf("read the daemon's figures: %w", err)
	}
	m.Deep = stats.Suspends
	m.Suspends = stats.Suspends + stats.GateHolds
	procs, err := r.counters(ctx)
	if err != nil {
		return m, err
	}
	var onDevice map[int]bench.DeviceProcess
	if r.device != nil {
		if onDevice, err = r.device.Processes(ctx); err != nil {
			return m, fmt.Errorf("read the device's figures: %w", err)
		}
		m.HighStops = onDevice[r.tenants[0].PID()].Preemptions
		if d, ok := r.device.(bench.VGPU); ok {
			if m.Remaps, err = d.Client.Remaps(); err != nil {
				return m, fmt.Errorf("read the device's figures: %w", err)
			}
		}
	}
	for _, t := range r.tenants[1:] {
		m.GateWaits += procs[t.PID()].Counters.GateWaits
		m.Preemptions += onDevice[t.PID()].Preemptions
	}
	return m, nil
}

// counters are the daemon's processes by pid.
func (r *run) counters(ctx context.Context) (map[int]control.Process, error) {
	list, err := r.daemon.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the daemon's list: %w", err)
	}
	out := map[int]control.Process{}
	for _, p := range list.Processes {
		out[p.PID] = p
	}
	return out, nil
}

// compareSlices compares the timeslices the daemon set with those the device
// uses. They may change at any moment, so a comparison counts only if the
// daemon says the same before and after the device was asked.
func (r *run) compareSlices(ctx context.Context) error {
	if r.device == nil {
		return nil
	}
	for range 20 {
		before, err := r.planned(ctx)
		if err != nil {
			return err
		}
		onDevice, err := r.device.Processes(ctx)
		if err != nil {
			return fmt.Errorf("read the device's figures: %w", err)
		}
		after, err := r.planned(ctx)
		if err != nil {
			return err
		}
		if !maps.Equal(before, after) {
			continue
		}
		var found []SliceEvidence
		for _, t := range r.tenants {
			want, ok := before[t.PID()]
			if !ok {
				continue
			}
			found = append(found, SliceEvidence{Name: t.Name, PID: t.PID(), Plan: want, Device: onDevice[t.PID()].Slice})
		}
		r.compared = found
		if len(wrongSlices(&Evidence{Slices: found})) == 0 {
			return nil
		}
		if err := bench.Sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// planned is the timeslice in force per pid, by the daemon.
func (r *run) planned(ctx context.Context) (map[int]time.Duration, error) {
	procs, err := r.counters(ctx)
	if err != nil {
		return nil, err
	}
	out := map[int]time.Duration{}
	for _, t := range r.tenants {
		for _, q := range procs[t.PID()].Queues {
			us := q.SliceUS
			if us == 0 {
				us = q.OwnSliceUS
			}
			out[t.PID()] = time.Duration(us) * time.Microsecond
		}
	}
	return out, nil
}

var errNotConfirmed = errors.New("the daemon did not confirm the suspension within 2 s")
