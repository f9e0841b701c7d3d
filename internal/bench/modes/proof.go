// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"fmt"
	"strings"
	"time"

	"xsched/internal/bench"
	"xsched/internal/control"
)

// turnEvidence is what tenants, shims, daemons and device report about one turn of a mode.
type turnEvidence struct {
	mode, policy string

	global   int    // processes of the program at the global daemon
	own      int    // at its private daemon
	inForce  string // policy of the daemon that schedules it
	touched  uint64 // operations of the global daemon in this turn
	stops    uint64 // preemptions and yields by the program's daemon in this turn
	hooked   uint64 // driver calls by the library
	launches uint64 // launches by the library
	kernels  uint64 // by the device
	told     uint64 // launches by the tenants
	cut      uint64 // kernels of the background stopped in the middle, by the device
	requests int
	holds    int           // times the program suspended itself
	ranHeld  time.Duration // the background on the device while it was suspended
	checksum bool
	ended    error

	before, others control.Stats
}

// begin looks at the daemons before the load.
func (ev *turnEvidence) begin(ctx context.Context, r *bench.Rig, f *family) error {
	if ev.mode == SchedulerGLB || ev.mode == SchedulerLCL {
		n := 0
		ok, err := bench.Until(ctx, 3*time.Second, 20*time.Millisecond, func() (bool, error) {
			known, err := f.known(ctx, f.daemon)
			n = len(known)
			return n == 2 && known[0].Counters.HookedCalls > 0 && known[1].Counters.HookedCalls > 0, err
		})
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%w (%s): shim intercepts: the daemon knows %d of the program's 2 processes: the shim in it is inert", bench.ErrProof, ev.mode, n)
		}
	}
	var err error
	if ev.before, err = f.daemon.Stats(ctx); err != nil {
		return fmt.Errorf("read the daemon's figures: %w", err)
	}
	if ev.others, err = r.Daemon.Stats(ctx); err != nil {
		return fmt.Errorf("read the daemon's figures: %w", err)
	}
	return nil
}

// end reads everybody's counts after the load, and ends the program.
func (ev *turnEvidence) end(ctx context.Context, r *bench.Rig, f *family) error {
	if _, err := bench.Until(ctx, 2*time.Second, 20*time.Millisecond, func() (bool, error) { // counts are published within a tick
		err := ev.count(ctx, r, f)
		return ev.launches == ev.kernels || ev.own+ev.global == 0, err
	}); err != nil {
		return err
	}
	after, err := f.daemon.Stats(ctx)
	if err != nil {
		return fmt.Errorf("read the daemon's figures: %w", err)
	}
	ev.stops = after.Preemptions + after.Yields - ev.before.Preemptions - ev.before.Yields
	others, err := r.Daemon.Stats(ctx)
	if err != nil {
		return fmt.Errorf("read the daemon's figures: %w", err)
	}
	ev.touched = operations(others) - operations(ev.others)
	segments, err := f.record(ctx)
	if err != nil {
		return err
	}
	ev.ended = f.quit(10 * time.Second)
	high, low := f.high.Final(), f.low.Final()
	ev.checksum, ev.told = high.OK && low.OK, high.Launches+low.Launches
	ev.requests = len(f.high.Samples())
	if ev.mode == SchedulerAPP {
		ev.launches = f.high.Submitted + f.low.Submitted
		ev.hooked = ev.launches
		ev.holds = len(f.low.Holds)
		for _, w := range f.low.Holds {
			ev.ranHeld += bench.Held(segments, f.low.PID(), w)
		}
	}
	return nil
}

func operations(s control.Stats) uint64 { return s.Suspends + s.GateHolds + s.TimesliceSets }

// record is the device's record of a program that schedules itself.
func (f *family) record(ctx context.Context) ([]bench.Segment, error) {
	samples := f.low.Samples()
	if f.mode != SchedulerAPP || len(samples) == 0 {
		return nil, nil
	}
	segments, _, err := f.device.Record(ctx, bench.Window{From: samples[0].Start, To: bench.Monotonic()})
	if err != nil {
		return nil, fmt.Errorf("read the device's record: %w", err)
	}
	return segments, nil
}

// count reads the counters of the daemons and the device.
func (ev *turnEvidence) count(ctx context.Context, r *bench.Rig, f *family) error {
	global, err := f.known(ctx, r.Daemon)
	if err != nil {
		return err
	}
	own := global
	if ev.global = len(global); ev.mode == SchedulerLCL {
		if own, err = f.known(ctx, f.daemon); err != nil {
			return err
		}
		ev.own = len(own)
	}
	ev.hooked, ev.launches = 0, 0
	for _, p := range own {
		ev.hooked += p.Counters.HookedCalls
		ev.launches += p.Counters.Launches
	}
	v, err := f.daemon.Version(ctx)
	if err != nil {
		return fmt.Errorf("read the daemon's version: %w", err)
	}
	ev.inForce = v.Policy
	procs, err := f.device.Processes(ctx)
	if err != nil {
		return fmt.Errorf("read the device's figures: %w", err)
	}
	ev.kernels = procs[f.high.PID()].Kernels + procs[f.low.PID()].Kernels
	ev.cut = procs[f.low.PID()].Preemptions
	return nil
}

// take adds a turn to its row: the counts, and the checks. One that failed once has failed.
func (row *Row) take(ev *turnEvidence) {
	row.Preemptions += ev.cut
	row.Intercepted += ev.launches
	row.Kernels += ev.kernels
	row.Held += ev.stops + uint64(ev.holds)
	for _, c := range ev.checks() {
		at := -1
		for i := range row.Checks {
			if row.Checks[i].Name == c.Name {
				at = i
			}
		}
		switch {
		case at < 0:
			row.Checks = append(row.Checks, c)
		case row.Checks[at].OK:
			row.Checks[at] = c
		}
	}
}

// checks draws the conclusions about one turn.
func (ev *turnEvidence) checks() []bench.Check {
	var out []bench.Check
	add := func(name string, good string, bad ...string) {
		c := bench.Check{Name: name, OK: true, Detail: good}
		var failures []string
		for _, b := range bad {
			if b != "" {
				failures = append(failures, b)
			}
		}
		if len(failures) > 0 {
			c.OK, c.Detail = false, strings.Join(failures, "; ")
		}
		out = append(out, c)
	}
	when := func(wrong bool, format string, args ...any) string {
		if wrong {
			return fmt.Sprintf(format, args...)
		}
		return ""
	}
	end := ""
	if ev.ended != nil {
		end = ev.ended.Error()
	}
	add("results", "checksums right in both processes, which ended well", end, when(!ev.checksum, "a wrong checksum"),
		when(ev.told != ev.kernels, "the tenants launched %d kernels, the device executed %d", ev.told, ev.kernels))
	if ev.mode == SchedulerNative {
		add("native is native", "no daemon knows the program, none did anything", when(ev.global+ev.own > 0, "a daemon knows %d of its processes", ev.global+ev.own),
			when(ev.touched > 0, "the daemon did %d operations", ev.touched), when(ev.launches+ev.hooked > 0, "the library intercepted %d calls", ev.hooked))
		return out
	}
	good := fmt.Sprintf("%d launches intercepted, %d kernels executed", ev.launches, ev.kernels)
	if ev.mode == SchedulerAPP {
		good = fmt.Sprintf("%d pieces of work counted in the program's own queues, %d of them kernels", ev.launches, ev.kernels)
	}
	add("shim intercepts", good,
		when(ev.hooked == 0, "the library intercepted nothing"),
		when(ev.mode != SchedulerAPP && ev.launches != ev.kernels, "%d launches intercepted, %d kernels executed", ev.launches, ev.kernels),
		when(ev.mode == SchedulerAPP && ev.launches < ev.told, "%d launches counted in the program's queues, %d made", ev.launches, ev.told))
	switch ev.mode {
	case SchedulerGLB:
		add("the daemon schedules it", fmt.Sprintf("%d stops and yields, %d kernels stopped in the middle", ev.stops, ev.cut),
			when(ev.global != 2, "the daemon knows %d of its 2 processes", ev.global), ev.inert())
	case SchedulerLCL:
		add("its own daemon schedules it", fmt.Sprintf("%d stops and yields, %d kernels stopped in the middle; unknown to the other daemon", ev.stops, ev.cut),
			when(ev.own != 2, "its daemon knows %d of its 2 processes", ev.own), when(ev.global > 0, "the other daemon knows %d of them", ev.global),
			when(ev.touched > 0, "the other daemon did %d operations", ev.touched),
			when(ev.inForce != ev.policy, "its policy is %s, not %s", ev.inForce, ev.policy), ev.inert())
	case SchedulerAPP:
		add("it schedules itself", fmt.Sprintf("suspended itself %d times for %d requests, and did not run then; unknown to any daemon", ev.holds, ev.requests),
			when(ev.global+ev.own > 0, "a daemon knows %d of its processes", ev.global+ev.own), when(ev.touched > 0, "the daemon did %d operations", ev.touched),
			when(ev.requests == 0 || ev.holds < ev.requests, "it suspended itself %d times for %d requests", ev.holds, ev.requests),
			when(ev.ranHeld > time.Duration(ev.holds)*bench.HoldSlack, "its background ran for %v while it was suspended", ev.ranHeld))
	}
	return out
}

// inert reports whether a daemon scheduled nothing.
func (ev *turnEvidence) inert() string {
	switch {
	case ev.stops == 0:
		return "it never stopped anybody"
	case ev.cut == 0:
		return "the device stopped no kernel in the middle"
	}
	return ""
}
