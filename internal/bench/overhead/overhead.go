// SPDX-License-Identifier: Apache-2.0

// Package overhead measures the cost of XSched itself: a launch, a wake-up and a decision.
package overhead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/bench"
	"xsched/internal/embedded"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/virtual"
)

// The budgets of the launch path.
const (
	HookBudgetNS     = 20  // added to a launch while the queue is busy
	WakeBudgetUS     = 200 // P99 from an idle->busy change to the decision about it
	DecisionBudgetUS = 50  // one decision with 1,000 queues
	decisionQueues   = 1000
	overheadPairs    = 5 // runs of the launch loop with and without the shim
)

// Options configure a measurement.
type Options struct {
	// Null is the folder of the null driver and its launch loop (make null).
	Null string
	// Launches of one run of the loop; Seconds of the wake-up measurement.
	Launches int
	Seconds  float64
}

// Result is what XSched itself costs on this machine.
type Result struct {
	Machine  bench.Machine `json:"machine"`
	Hook     HookCost      `json:"hook"`
	Pair     PairCost      `json:"pair"`
	Streams  []StreamCost  `json:"streams"`
	Wake     WakeCost      `json:"wake"`
	Decision DecisionCost  `json:"decision"`
}

// HookCost is the launch loop on the null driver, each pair of runs side by side.
type HookCost struct {
	Launches  int       `json:"launches"`
	WithoutNS []float64 `json:"without_ns"` // per launch, best round of each run
	WithNS    []float64 `json:"with_ns"`
	AddedNS   float64   `json:"added_ns"` // median of the pairs' differences
	OK        bool      `json:"ok"`
}

// WakeCost is from an application's idle->busy change to the daemon's decision, next to another
// tenant that could use the device, while a process spins on one of the cores.
type WakeCost struct {
	Count      uint64  `json:"count"`
	P50US      float64 `json:"p50_us"`
	P99US      float64 `json:"p99_us"`
	MaxUS      float64 `json:"max_us"`
	Scheduling string  `json:"scheduling"` // of the engine's thread
	OK         bool    `json:"ok"`
}

// DecisionCost is one high queue changing among 1,000 busy ones on one device.
type DecisionCost struct {
	Queues int     `json:"queues"`
	MeanUS float64 `json:"mean_us"`
	P50US  float64 `json:"p50_us"`
	P99US  float64 `json:"p99_us"`
	OK     bool    `json:"ok"`
}

// OK reports whether all figures are within their budgets.
func (out *Result) OK() bool {
	return out.Hook.OK && out.Pair.OK && out.Wake.OK && out.Decision.OK
}

// Measure measures all of it, one after the other.
func Measure(ctx context.Context, o Options) (*Result, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	out := &Result{Machine: bench.ThisMachine()}
	if out.Decision, err = measureDecision(); err != nil {
		return nil, err
	}
	if err := out.measureNull(ctx, exe, o); err != nil {
		return nil, err
	}
	r, err := bench.OpenPrivate(ctx, exe, bench.Private{Platform: virtual.Default().Name})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	out.Wake, err = measureWake(ctx, r, o.Seconds)
	return out, err
}

// measureNull measures on the null driver, whose device has neither a kernel driver nor a PCI
// address, so its queues compete without a verification.
func (out *Result) measureNull(ctx context.Context, exe string, o Options) error {
	r, err := bench.OpenPrivate(ctx, exe, bench.Private{Platform: virtual.Default().Name})
	if err != nil {
		return err
	}
	defer r.Close()
	if out.Hook, err = measureHook(ctx, r, o); err != nil {
		return err
	}
	if out.Pair, err = measurePair(ctx, r, o); err != nil {
		return err
	}
	out.Streams, err = measureStreams(ctx, r, o)
	return err
}

// measureHook runs the loop in pairs, so that a slow phase of the machine meets both.
func measureHook(ctx context.Context, r *bench.Rig, o Options) (HookCost, error) {
	shim, err := embedded.Unpack(embedded.Shim)
	if err != nil {
		return HookCost{}, err
	}
	loop := filepath.Join(o.Null, "launchloop")
	if _, err := os.Stat(loop); err != nil {
		return HookCost{}, fmt.Errorf("no launch loop at %s; run `make null`", loop)
	}
	cost := HookCost{Launches: o.Launches}
	var added []float64
	for range overheadPairs {
		without, err := launchLoop(ctx, r, loop, o, "")
		if err != nil {
			return cost, err
		}
		with, err := launchLoop(ctx, r, loop, o, shim)
		if err != nil {
			return cost, err
		}
		cost.WithoutNS = append(cost.WithoutNS, without)
		cost.WithNS = append(cost.WithNS, with)
		added = append(added, with-without)
	}
	slices.Sort(added)
	cost.AddedNS = added[len(added)/2]
	cost.OK = cost.AddedNS <= HookBudgetNS
	return cost, nil
}

// launchLoop returns ns per launch of the loop's best round, and insists that
// every launch reached the driver.
func launchLoop(ctx context.Context, r *bench.Rig, loop string, o Options, preload string) (float64, error) {
	cmd := exec.CommandContext(ctx, loop, fmt.Sprint(o.Launches))
	cmd.Env = bench.WithEnv("LD_LIBRARY_PATH="+o.Null, "LD_PRELOAD="+preload, "XSCHED_DIR="+r.Dir)
	text, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", loop, err)
	}
	var line struct {
		Launches int     `json:"launches"`
		Driver   int     `json:"driver_launches"`
		Best     float64 `json:"ns_per_launch_best"`
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return 0, fmt.Errorf("read the launch loop's answer: %w", err)
	}
	if line.Driver != line.Launches || line.Launches == 0 {
		return 0, fmt.Errorf("the driver saw %d of %d launches", line.Driver, line.Launches)
	}
	return line.Best, nil
}

// measureWake lets a tenant come and go next to a spinning process.
func measureWake(ctx context.Context, r *bench.Rig, seconds float64) (WakeCost, error) {
	spin := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
	spin.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := spin.Start(); err != nil {
		return WakeCost{}, fmt.Errorf("start the spinning process: %w", err)
	}
	defer func() {
		_ = spin.Process.Kill()
		_ = spin.Wait()
	}()
	var core unix.CPUSet
	core.Set(0)
	if err := unix.SchedSetaffinity(spin.Process.Pid, &core); err != nil {
		return WakeCost{}, fmt.Errorf("pin the spinning process: %w", err)
	}
	// The second has no work, but a tenant by itself would not ring, as no queue waits for its changes.
	var t *bench.Tenant
	for i := range 2 {
		started, err := r.StartTenant(i, bench.Workload{HighUS: 90, LowUS: 90})
		if err != nil {
			return WakeCost{}, err
		}
		defer started.Kill()
		if err := started.Await(ctx, "R", 30*time.Second); err != nil {
			return WakeCost{}, err
		}
		if i == 0 {
			t = started
		}
	}
	if err := t.Tell("rate 200"); err != nil {
		return WakeCost{}, err
	}
	select {
	case <-ctx.Done():
		return WakeCost{}, ctx.Err()
	case <-time.After(time.Duration(seconds * float64(time.Second))):
	}
	stats, err := r.Daemon.Stats(ctx)
	if err != nil {
		return WakeCost{}, err
	}
	h := stats.BusyToDecision
	if h.Count < uint64(100*seconds) {
		return WakeCost{}, errors.New("the daemon saw too few changes from idle to busy: the measurement is void")
	}
	return WakeCost{h.Count, h.P50US, h.P99US, h.MaxUS, stats.Scheduling, h.P99US <= WakeBudgetUS}, nil
}

// measureDecision times the engine alone, in this process.
func measureDecision() (DecisionCost, error) {
	e, err := engine.New(engine.DefaultConfig())
	if err != nil {
		return DecisionCost{}, err
	}
	now := model.Time(time.Hour)
	high := model.QueueID{Session: 1}
	for i := range decisionQueues {
		q := model.Queue{ID: model.QueueID{Session: model.SessionID(i + 1)}, PID: i + 1, Level: model.LevelInterrupt, Slices: true}
		if q.ID == high {
			q.Hint.Priority = 10
		}
		e.AddQueue(now, q)
		e.SetBusy(now, q.ID, q.ID != high)
	}
	e.Decide(now)
	const rounds = 20000
	took := make([]float64, rounds)
	sum := 0.0
	for i := range took {
		now = now.Add(time.Millisecond)
		start := time.Now()
		e.SetBusy(now, high, i%2 == 0)
		e.Decide(now)
		took[i] = float64(time.Since(start)) / 1e3
		sum += took[i]
	}
	slices.Sort(took)
	cost := DecisionCost{Queues: decisionQueues, MeanUS: sum / rounds, P50US: took[rounds/2], P99US: took[rounds*99/100]}
	// The median: a preemption of this thread is not the decision's cost.
	cost.OK = cost.P50US <= DecisionBudgetUS
	return cost, nil
}

// WriteTable prints each figure next to its budget.
func (out *Result) WriteTable(w io.Writer) error {
	verdict := func(ok bool) string {
		if ok {
			return "kept"
		}
		return "MISSED"
	}
	lowest := func(v []float64) float64 {
		if len(v) == 0 {
			return math.NaN()
		}
		return slices.Min(v)
	}
	_, err := fmt.Fprintf(w, `%s, %s

                                     measured   budget
hook on a busy queue, a launch     %7.1f ns    %3d ns  %s   (%d launches on the null driver, %d pairs; best without %.1f, with %.1f ns)
busy and idle again, alone: launch %7.1f ns    %3.0f ns  %s   (%d launches that are waited for at once, %d runs; best past the shim %.1f, through it %.1f ns; a clock reading takes %.1f ns; waiting for the whole device adds %.1f ns)
                              copy %7.1f ns    %3.0f ns  %s   (copies that wait; best past the shim %.1f, through it %.1f ns)
idle->busy to decision, P99        %7.1f us    %3d us  %s   (%d changes, P50 %.1f us, max %.1f us; one core spins; engine thread: %s)
decision with %d queues, P50     %7.2f us    %3d us  %s   (mean %.2f us, P99 %.2f us)
`, out.Machine.String(), time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		out.Hook.AddedNS, HookBudgetNS, verdict(out.Hook.OK), out.Hook.Launches, len(out.Hook.WithNS), lowest(out.Hook.WithoutNS), lowest(out.Hook.WithNS),
		out.Pair.AddedNS, out.Pair.BudgetNS, verdict(out.Pair.AddedNS <= out.Pair.BudgetNS), out.Pair.Pairs, len(out.Pair.WithNS), lowest(out.Pair.PlainNS), lowest(out.Pair.WithNS), out.Pair.ClockNS, out.Pair.TaskAddedNS,
		out.Pair.CopyAddedNS, out.Pair.BudgetNS, verdict(out.Pair.CopyAddedNS <= out.Pair.BudgetNS), lowest(out.Pair.CopyPlainNS), lowest(out.Pair.CopyWithNS),
		out.Wake.P99US, WakeBudgetUS, verdict(out.Wake.OK), out.Wake.Count, out.Wake.P50US, out.Wake.MaxUS, out.Wake.Scheduling,
		out.Decision.Queues, out.Decision.P50US, DecisionBudgetUS, verdict(out.Decision.OK), out.Decision.MeanUS, out.Decision.P99US)
	if err != nil {
		return err
	}
	return writeStreams(w, out.Streams)
}
