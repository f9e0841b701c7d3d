// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"xsched/internal/clock"
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
}

// Device is the ground truth: what the device itself recorded. Only the
// virtual GPU has one.
type Device interface {
	Processes(ctx context.Context) (map[int]DeviceProcess, error)
	// Record returns who held the device in a stretch of time, and how long the
	// kernels handed over in it waited.
	Record(ctx context.Context, w Window) ([]Segment, []Wait, error)
}

// DeviceProcess is what the device counted for one process.
type DeviceProcess struct {
	Kernels     uint64
	Preemptions uint64        // stopped in the middle of a kernel
	Slice       time.Duration // of its compute group
}

// plan is how one scenario is run.
type plan struct {
	lows     int
	modes    []string
	rounds   int
	block    time.Duration
	lowBlock time.Duration // length of the low-alone blocks
	edge     trim
	holdFor  time.Duration
	seed     uint64
	work     Workload
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
	device  Device // nil: no ground truth
	tenants []*tenant

	blocks   []Block
	segments []Segment
	waits    []Wait
	modal    map[string]ModeEvidence
	compared []SliceEvidence
	hold     *HoldEvidence
}

// modeOf is the daemon's mode for one of ours.
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
func scenario(ctx context.Context, p plan, d Daemon, dev Device, start func(i int) (*tenant, error)) (*Scenario, error) {
	setDefault(&p.deep, ModeLv3)
	r := &run{plan: p, daemon: d, device: dev, modal: map[string]ModeEvidence{}}
	defer func() {
		for _, t := range r.tenants {
			t.kill()
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
		if err := t.await(ctx, "R", 30*time.Second); err != nil {
			return nil, err
		}
	}
	if err := r.attachLows(ctx); err != nil {
		return nil, err
	}
	if err := r.joined(ctx); err != nil {
		return nil, err
	}
	for _, mode := range schedule(append(append([]string(nil), p.modes...), lowAlone), p.rounds, p.seed) {
		p.progress(p.name() + ", " + mode)
		if err := r.oneBlock(ctx, mode); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", p.name(), mode, err)
		}
	}
	p.progress(p.name() + ", proof")
	if has(p.modes, p.deep) && r.device != nil {
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

// joined waits until the daemon knows every tenant. One whose shim is inert
// never gets there, and there is no sense in measuring it for a minute.
func (r *run) joined(ctx context.Context) error {
	limit := time.Now().Add(3 * time.Second)
	for {
		procs, err := r.counters(ctx)
		if err != nil {
			return err
		}
		var missing *tenant
		for _, t := range r.tenants {
			if !r.known(procs[t.pid()], t) && missing == nil {
				missing = t
			}
		}
		if missing == nil {
			return nil
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%w (%s): shim intercepts: the shim in %s (pid %d) is inert: the program uses the GPU and the daemon does not know it",
				ErrProof, r.name(), missing.name, missing.pid())
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// oneBlock runs one block: everybody into the mode's state, then the clock.
func (r *run) oneBlock(ctx context.Context, mode string) error {
	high, lows := r.tenants[0], r.tenants[1:]
	if err := high.pause(ctx); err != nil {
		return err
	}
	if _, err := r.daemon.SetMode(ctx, modeOf(mode)); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	for i, t := range lows {
		if mode == ModeAlone || mode == lowAlone && i > 0 {
			if err := t.pause(ctx); err != nil {
				return err
			}
		} else if err := t.tell("loop"); err != nil {
			return err
		}
	}
	length := r.lowBlock
	if mode != lowAlone {
		length = r.block
		if err := high.tell(fmt.Sprintf("rate %g", r.work.HighRate)); err != nil {
			return err
		}
	}
	b := Block{Mode: mode, From: monotonic()}
	if err := sleep(ctx, r.edge.head); err != nil {
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
	if err := sleep(ctx, time.Duration(b.From+int64(length)-monotonic())); err != nil {
		return err
	}
	b.To = monotonic()
	after, err := r.counted(ctx)
	if err != nil {
		return err
	}
	r.modal[mode] = r.modal[mode].plus(before, after)
	r.blocks = append(r.blocks, b)
	if r.device != nil {
		segs, waits, err := r.device.Record(ctx, Window{b.From, b.To})
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
	var onDevice map[int]DeviceProcess
	if r.device != nil {
		if onDevice, err = r.device.Processes(ctx); err != nil {
			return m, fmt.Errorf("read the device's figures: %w", err)
		}
		m.HighStops = onDevice[r.tenants[0].pid()].Preemptions
		if d, ok := r.device.(virtualDevice); ok {
			if m.Remaps, err = d.client.Remaps(); err != nil {
				return m, fmt.Errorf("read the device's figures: %w", err)
			}
		}
	}
	for _, t := range r.tenants[1:] {
		m.GateWaits += procs[t.pid()].Counters.GateWaits
		m.Preemptions += onDevice[t.pid()].Preemptions
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
		if !equalSlices(before, after) {
			continue
		}
		var found []SliceEvidence
		for _, t := range r.tenants {
			want, ok := before[t.pid()]
			if !ok {
				continue
			}
			found = append(found, SliceEvidence{Name: t.name, PID: t.pid(), Plan: want, Device: onDevice[t.pid()].Slice})
		}
		r.compared = found
		if len(wrongSlices(&Evidence{Slices: found})) == 0 {
			return nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
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
		for _, q := range procs[t.pid()].Queues {
			us := q.SliceUS
			if us == 0 {
				us = q.OwnSliceUS
			}
			out[t.pid()] = time.Duration(us) * time.Microsecond
		}
	}
	return out, nil
}

func equalSlices(a, b map[int]time.Duration) bool {
	if len(a) != len(b) {
		return false
	}
	for pid, v := range a {
		if b[pid] != v {
			return false
		}
	}
	return true
}

var errNotConfirmed = errors.New("the daemon did not confirm the suspension within 2 s")

// monotonic is the clock of the tenants, the daemon and the device.
func monotonic() int64 {
	return int64(clock.Now())
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
