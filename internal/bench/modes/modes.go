// SPDX-License-Identifier: Apache-2.0

// Package modes compares schedulers of a program of two processes: none, the daemon, a private
// daemon, or the program itself.
package modes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sort"
	"time"

	"xsched/internal/bench"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/policy"
	"xsched/internal/report"
	"xsched/internal/virtual"
)

// The schedulers of a program. The names are part of the JSON.
const (
	SchedulerNative = "native" // none: the hardware shares the GPU
	SchedulerGLB    = "GLB"    // the daemon
	SchedulerLCL    = "LCL"    // a private daemon for the program and its children
	SchedulerAPP    = "APP"    // the program itself, through the API
)

// Schedulers lists them in the order of the table.
func Schedulers() []string {
	return []string{SchedulerNative, SchedulerGLB, SchedulerLCL, SchedulerAPP}
}

// Options is one comparison of the scheduler modes on the virtual GPU. Zero values mean the defaults.
type Options struct {
	Rate    float64 // requests a second; default 50
	HighUS  int     // length of a request's kernel; default 5000
	LowUS   int     // length of the background's kernels; default 1000
	Seconds float64 // time for each mode, of all its turns; default 4
	Rounds  int     // turns of each mode; default 2
	Policy  string  // of both daemons; default HPF
	Seed    uint64  // of the order; 0: a new one

	Out      string // folder that gets the result later; empty: none
	Progress *os.File
	Fault    string // FaultShimInert: to show that the proof notices
	Exe      string // the xsched program; empty: this one
}

func (o *Options) defaults() error { return bench.Complete(o.check(), o.Out, &o.Exe) }

// check sets defaults, and returns the first option that is out of range.
func (o *Options) check() error {
	bench.Default(&o.Rate, 50)
	bench.Default(&o.HighUS, 5000)
	bench.Default(&o.LowUS, 1000)
	bench.Default(&o.Seconds, 4)
	bench.Default(&o.Rounds, 2)
	bench.Default(&o.Policy, "HPF")
	for o.Seed == 0 {
		o.Seed = uint64(rand.Uint32())
	}
	p, err := policy.New(o.Policy)
	if err != nil {
		return err
	}
	o.Policy = p.Name()
	switch {
	case o.Rate <= 0 || o.Rate > 10000:
		return fmt.Errorf("rate %g is out of range; use up to 10000 requests a second", o.Rate)
	case o.HighUS < 1 || o.LowUS < 1 || o.HighUS > 10_000_000 || o.LowUS > 10_000_000:
		return errors.New("kernel length is out of range; use 1 to 10000000 us")
	case o.Rounds < 1 || o.Rounds > 100:
		return fmt.Errorf("%d turns are out of range; use 1 to 100", o.Rounds)
	case o.Seconds/float64(o.Rounds) < 0.5 || o.Seconds > 3600:
		return fmt.Errorf("%g seconds for each mode in %d turns are out of range; use at least half a second a turn, 3600 at most", o.Seconds, o.Rounds)
	case o.Fault != "" && o.Fault != bench.FaultShimInert:
		return fmt.Errorf("unknown fault %q", o.Fault)
	}
	return nil
}

// Result is the result of a comparison.
type Result struct {
	Device   string         `json:"device"`
	Date     time.Time      `json:"date"`
	Machine  bench.Machine  `json:"machine"`
	Seed     uint64         `json:"seed"`
	Policy   string         `json:"policy"`
	Workload bench.Workload `json:"workload"`
	// AloneRate is the best-effort process's rate with the GPU to itself, in iterations per second.
	AloneRate float64 `json:"low_alone_rate_hz"`
	Rows      []*Row  `json:"rows"`
}

// Row is one mode.
type Row struct {
	Name string          `json:"name"`
	High *report.Latency `json:"high"`
	// Kept is the best-effort process's rate beside the requests, relative to alone.
	Kept        float64      `json:"kept"`
	GPU         *bench.Split `json:"gpu"`
	Preemptions uint64       `json:"preemptions"` // of the background in mid-kernel, by the device
	// Held counts its suspensions and yields, by a daemon or by the program itself.
	Held uint64 `json:"held"`
	// Launches that the shim intercepted, and kernels that the device executed.
	Intercepted uint64        `json:"intercepted"`
	Kernels     uint64        `json:"kernels"`
	Checks      []bench.Check `json:"checks"`
	Seconds     float64       `json:"seconds"`

	latencies []time.Duration
	low       float64 // iterations of the background
	alone     float64 // a second, in the best turn
	segments  []bench.Segment
	windows   []bench.Window
	highs     map[int]bool
	lanes     []report.Lane // of the first turn
}

// modeEdge is dropped at both ends of a window, while the tenants start and stop.
var modeEdge = bench.Trim{Head: 200 * time.Millisecond, Tail: 50 * time.Millisecond}

// Run measures. It returns a result only if its proof holds, else an ErrProof that names
// the failed check.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	r, err := bench.OpenPrivate(ctx, o.Exe, bench.Private{Platform: virtual.Default().Name, Fault: o.Fault, Serve: []string{"--policy", o.Policy}})
	if err != nil {
		return nil, bench.WithContext(ctx, err)
	}
	defer r.Close()
	res := &Result{
		Device: bench.VirtualDevice, Date: time.Now(), Machine: bench.ThisMachine(), Seed: o.Seed, Policy: o.Policy,
		Workload: bench.Workload{HighRate: o.Rate, HighUS: o.HighUS, LowUS: o.LowUS},
	}
	rows := map[string]*Row{}
	for _, name := range Schedulers() {
		rows[name] = &Row{Name: name, highs: map[int]bool{}}
		res.Rows = append(res.Rows, rows[name])
	}
	order := bench.Schedule(Schedulers(), o.Rounds, o.Seed)
	bar := bench.NewMeter(o.Progress, len(order))
	defer bar.Finish()
	for _, name := range order {
		bar.Step(name)
		if err := o.turn(ctx, r, rows[name]); err != nil {
			return nil, bench.WithContext(ctx, fmt.Errorf("%s: %w", name, err))
		}
		res.Machine.Scheduling = r.Scheduling
	}
	// Noise only makes it slower, so the best turn is the rate alone.
	for _, row := range res.Rows {
		res.AloneRate = max(res.AloneRate, row.alone)
	}
	for _, row := range res.Rows {
		row.finish(res.AloneRate)
		if err := bench.Failure(row.Name, row.Checks); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// turn runs the program once in a mode.
func (o *Options) turn(ctx context.Context, r *bench.Rig, row *Row) error {
	f, err := o.start(ctx, r, row.Name)
	if err != nil {
		return err
	}
	defer f.kill()
	ev := &turnEvidence{mode: row.Name, policy: o.Policy}
	if err := ev.begin(ctx, r, f); err != nil {
		return err
	}
	// First the best-effort process alone, as the reference for its throughput.
	if err := f.low.Tell("loop"); err != nil {
		return err
	}
	alone, err := o.window(ctx, 600*time.Millisecond)
	if err != nil {
		return err
	}
	if err := f.high.Tell(fmt.Sprintf("rate %g", o.Rate)); err != nil {
		return err
	}
	both, err := o.window(ctx, time.Duration(o.Seconds/float64(o.Rounds)*float64(time.Second)))
	if err != nil {
		return err
	}
	segments, _, err := f.device.Record(ctx, both)
	if err != nil {
		return fmt.Errorf("read the device's record: %w", err)
	}
	for _, t := range []*bench.Tenant{f.high, f.low} {
		if err := t.Pause(ctx); err != nil {
			return err
		}
	}
	if err := ev.end(ctx, r, f); err != nil {
		return err
	}
	row.latencies = append(row.latencies, bench.Latencies(f.high.Samples(), []bench.Window{both})...)
	if row.lanes == nil {
		row.lanes = picture(segments, f.high.Samples(), both, f.high.PID(), f.low.PID())
	}
	row.low += bench.Iterations(f.low.Samples(), []bench.Window{both})
	row.alone = max(row.alone, bench.Rate(f.low.Samples(), []bench.Window{alone}))
	row.segments, row.windows = append(row.segments, segments...), append(row.windows, both)
	row.highs[f.high.PID()] = true
	row.take(ev)
	return nil
}

// window waits and returns the measured interval.
func (o *Options) window(ctx context.Context, length time.Duration) (bench.Window, error) {
	from := bench.Monotonic()
	if err := bench.Sleep(ctx, length+modeEdge.Head+modeEdge.Tail); err != nil {
		return bench.Window{}, err
	}
	return bench.Window{From: from + int64(modeEdge.Head), To: bench.Monotonic() - int64(modeEdge.Tail)}, nil
}

// finish computes the row from its turns.
func (row *Row) finish(alone float64) {
	row.High = report.Summarize(row.latencies)
	row.Seconds = bench.Total(row.windows).Seconds()
	if alone > 0 && row.Seconds > 0 {
		row.Kept = row.low / row.Seconds / alone
	}
	sort.Slice(row.segments, func(i, j int) bool { return row.segments[i].From < row.segments[j].From })
	for i := range row.segments { // each turn had its own pids
		if row.highs[row.segments[i].PID] {
			row.segments[i].PID = -1
		}
	}
	row.GPU = bench.SplitTime(row.segments, row.windows, -1)
}

// known returns the program's processes that a daemon knows.
func (f *family) known(ctx context.Context, d *client.Client) ([]control.Process, error) {
	list, err := d.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the daemon's list: %w", err)
	}
	var out []control.Process
	for _, p := range list.Processes {
		if p.PID == f.high.PID() || p.PID == f.low.PID() {
			out = append(out, p)
		}
	}
	return out, nil
}
