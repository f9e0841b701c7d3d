// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sort"
	"strings"
	"time"

	"xsched/internal/control"
	"xsched/internal/embedded"
	"xsched/internal/policy"
	"xsched/internal/report"
)

// Who can schedule a program. The names are part of the JSON.
const (
	SchedulerNative = "native" // nobody: the hardware shares as it likes
	SchedulerGLB    = "GLB"    // the daemon
	SchedulerLCL    = "LCL"    // a private daemon for the program and its children
	SchedulerAPP    = "APP"    // the program itself, through the API
)

// AllSchedulers lists them in the order of the table.
func AllSchedulers() []string {
	return []string{SchedulerNative, SchedulerGLB, SchedulerLCL, SchedulerAPP}
}

// ModesOptions is one comparison of the scheduler modes on the virtual GPU. Zero values mean the defaults.
type ModesOptions struct {
	Rate    float64 // requests a second; default 50
	HighUS  int     // length of a request's kernel; default 5000
	LowUS   int     // length of the background's kernels; default 1000
	Seconds float64 // time for each mode, of all its turns; default 4
	Rounds  int     // turns of each mode; default 2
	Policy  string  // of both daemons; default HPF
	Seed    uint64  // of the order; 0: a new one

	Progress *os.File
	Fault    string // FaultShimInert: to show that the proof notices
	Exe      string // the xsched program; empty: this one
}

func (o *ModesOptions) defaults() error {
	setDefault(&o.Rate, 50)
	setDefault(&o.HighUS, 5000)
	setDefault(&o.LowUS, 1000)
	setDefault(&o.Seconds, 4)
	setDefault(&o.Rounds, 2)
	setDefault(&o.Policy, "HPF")
	for o.Seed == 0 {
		o.Seed = uint64(rand.Uint32())
	}
	if _, err := policy.New(o.Policy); err != nil {
		return err
	}
	o.Policy = strings.ToUpper(o.Policy)
	switch {
	case o.Rate <= 0 || o.Rate > 10000:
		return fmt.Errorf("rate %g is out of range; use up to 10000 requests a second", o.Rate)
	case o.HighUS < 1 || o.LowUS < 1 || o.HighUS > 10_000_000 || o.LowUS > 10_000_000:
		return errors.New("kernel length is out of range; use 1 to 10000000 us")
	case o.Rounds < 1 || o.Rounds > 100:
		return fmt.Errorf("%d turns are out of range; use 1 to 100", o.Rounds)
	case o.Seconds/float64(o.Rounds) < 0.5 || o.Seconds > 3600:
		return fmt.Errorf("%g seconds for each mode in %d turns are out of range; use at least half a second a turn, 3600 at most", o.Seconds, o.Rounds)
	case o.Fault != "" && o.Fault != FaultShimInert:
		return fmt.Errorf("unknown fault %q", o.Fault)
	}
	if o.Exe == "" {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		o.Exe = exe
	}
	return nil
}

// Modes is what a comparison found.
type Modes struct {
	Device   string    `json:"device"`
	Date     time.Time `json:"date"`
	Machine  Machine   `json:"machine"`
	Seed     uint64    `json:"seed"`
	Policy   string    `json:"policy"`
	Workload Workload  `json:"workload"`
	// AloneRate is what the background does with the GPU to itself, iterations a second.
	AloneRate float64         `json:"low_alone_rate_hz"`
	Rows      []*SchedulerRow `json:"rows"`
}

// SchedulerRow is one mode.
type SchedulerRow struct {
	Name string          `json:"name"`
	High *report.Latency `json:"high"`
	// Kept is the background's iterations beside the requests over what it does alone.
	Kept        float64 `json:"kept"`
	GPU         *Split  `json:"gpu"`
	Preemptions uint64  `json:"preemptions"` // of the background in mid-kernel, by the device
	// Held is how often it was stopped or made to yield: by a daemon, or by the program itself.
	Held uint64 `json:"held"`
	// What the library intercepted, of what the device executed.
	Intercepted uint64  `json:"intercepted"`
	Kernels     uint64  `json:"kernels"`
	Checks      []Check `json:"checks"`
	Seconds     float64 `json:"seconds"`

	latencies []time.Duration
	low       float64 // iterations of the background
	alone     float64 // a second, in the best turn
	segments  []Segment
	windows   []Window
	highs     map[int]bool
}

// modeEdge is cut off both ends of a window: at the first the tenants come into step.
var modeEdge = trim{head: 200 * time.Millisecond, tail: 50 * time.Millisecond}

// CompareModes measures. A result comes back only if its proof holds: else the error is an ErrProof
// that names what failed.
func CompareModes(ctx context.Context, o ModesOptions) (*Modes, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	tenantPath, err := embedded.Unpack(embedded.Tenant)
	if err != nil {
		return nil, fmt.Errorf("unpack the tenant: %w", err)
	}
	r, err := openVirtual(ctx, o.Exe, PlatformNVIDIA, o.Fault, "--policy", o.Policy)
	if err != nil {
		return nil, restoreErr(ctx, err)
	}
	defer r.close()
	r.tenant = tenantPath
	res := &Modes{
		Device: VirtualDevice, Date: time.Now(), Machine: thisMachine(), Seed: o.Seed, Policy: o.Policy,
		Workload: Workload{HighRate: o.Rate, HighUS: o.HighUS, LowUS: o.LowUS},
	}
	rows := map[string]*SchedulerRow{}
	for _, name := range AllSchedulers() {
		rows[name] = &SchedulerRow{Name: name, highs: map[int]bool{}}
		res.Rows = append(res.Rows, rows[name])
	}
	order := schedule(AllSchedulers(), o.Rounds, o.Seed)
	bar := newMeter(o.Progress, len(order))
	defer bar.finish()
	for _, name := range order {
		bar.step(name)
		if err := o.turn(ctx, r, rows[name]); err != nil {
			return nil, restoreErr(ctx, fmt.Errorf("%s: %w", name, err))
		}
		res.Machine.Scheduling = r.scheduling
	}
	// Whatever else the machine did has only made it slower: the best turn is what it does alone.
	for _, row := range res.Rows {
		res.AloneRate = max(res.AloneRate, row.alone)
	}
	for _, row := range res.Rows {
		row.finish(res.AloneRate)
		p := Proof{Checks: row.Checks}
		if err := p.failure(row.Name); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// turn runs the program once in a mode.
func (o *ModesOptions) turn(ctx context.Context, r *rig, row *SchedulerRow) error {
	f, err := o.start(ctx, r, row.Name)
	if err != nil {
		return err
	}
	defer f.kill()
	ev := &turnEvidence{mode: row.Name, policy: o.Policy}
	if err := ev.begin(ctx, r, f); err != nil {
		return err
	}
	// The background alone first: what it keeps is measured by that.
	if err := f.low.tell("loop"); err != nil {
		return err
	}
	alone, err := o.window(ctx, 600*time.Millisecond)
	if err != nil {
		return err
	}
	if err := f.high.tell(fmt.Sprintf("rate %g", o.Rate)); err != nil {
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
	for _, t := range []*tenant{f.high, f.low} {
		if err := t.pause(ctx); err != nil {
			return err
		}
	}
	if err := ev.end(ctx, r, f); err != nil {
		return err
	}
	row.latencies = append(row.latencies, latencies(f.high.taken(), []Window{both})...)
	row.low += iterations(f.low.taken(), []Window{both})
	row.alone = max(row.alone, rate(f.low.taken(), []Window{alone}))
	row.segments, row.windows = append(row.segments, segments...), append(row.windows, both)
	row.highs[f.high.pid()] = true
	row.take(ev)
	return nil
}

// window lets time pass and returns the part of it that counts.
func (o *ModesOptions) window(ctx context.Context, length time.Duration) (Window, error) {
	from := monotonic()
	if err := sleep(ctx, length+modeEdge.head+modeEdge.tail); err != nil {
		return Window{}, err
	}
	return Window{from + int64(modeEdge.head), monotonic() - int64(modeEdge.tail)}, nil
}

// finish computes the row from what its turns brought.
func (row *SchedulerRow) finish(alone float64) {
	row.High = report.Summarize(row.latencies)
	row.Seconds = total(row.windows).Seconds()
	if alone > 0 && row.Seconds > 0 {
		row.Kept = row.low / row.Seconds / alone
	}
	sort.Slice(row.segments, func(i, j int) bool { return row.segments[i].From < row.segments[j].From })
	for i := range row.segments { // each turn had its own pids
		if row.highs[row.segments[i].PID] {
			row.segments[i].PID = -1
		}
	}
	row.GPU = split(row.segments, row.windows, -1)
}

// known says which of the program's processes a daemon knows.
func (f *family) known(ctx context.Context, d Daemon) ([]control.Process, error) {
	list, err := d.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the daemon's list: %w", err)
	}
	var out []control.Process
	for _, p := range list.Processes {
		if p.PID == f.high.pid() || p.PID == f.low.pid() {
			out = append(out, p)
		}
	}
	return out, nil
}
