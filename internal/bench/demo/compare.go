// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"xsched/internal/bench"
	"xsched/internal/report"
	"xsched/internal/virtual"
)

// CompareOptions is one measurement: one high tenant and some low ones. Zero
// values mean the defaults.
type CompareOptions struct {
	Virtual bool   // own daemon on the virtual GPU; else the one in Dir
	Dir     string // sockets of the running daemon
	// Platform selects the driver that the virtual GPU emulates; default: the first of internal/virtual.
	Platform string
	Lows     []int // one scenario each; default 1

	Rate    float64       // the high tenant's requests a second; default 100
	HighUS  int           // length of its kernels; default 90
	LowUS   int           // length of the low tenants' kernels; default 20000
	Seconds float64       // time per mode; default 4
	Block   time.Duration // length of a block; default 2 s
	Modes   []string      // default all
	// Attached adds a scenario with one low tenant that has no shim and is attached.
	Attached bool
	// Memory adds the scene of programs that don't fit into the GPU's memory together.
	Memory bool
	Seed   uint64 // of the order of the blocks; 0: a new one

	Out      string   // folder for result.json and report.html; empty: none
	Progress *os.File // where the progress bar goes; quiet if not a terminal

	// Fault makes the device or the shim fail on purpose; see FaultShimInert.
	Fault string
	// Exe is the xsched program; empty: this one.
	Exe string
}

func (o *CompareOptions) defaults() error { return bench.Complete(o.check(), o.Out, &o.Exe) }

// check sets defaults, and returns the first option that is out of range.
func (o *CompareOptions) check() error {
	if len(o.Lows) == 0 {
		o.Lows = []int{1}
	}
	bench.Default(&o.Platform, virtual.Default().Name)
	bench.Default(&o.Rate, 100)
	bench.Default(&o.HighUS, 90)
	bench.Default(&o.LowUS, 20000)
	bench.Default(&o.Seconds, 4)
	bench.Default(&o.Block, 2*time.Second)
	if len(o.Modes) == 0 {
		o.Modes = ModesOf(o.Platform)
	}
	for o.Seed == 0 {
		o.Seed = uint64(rand.Uint32())
	}
	for _, m := range o.Modes {
		if !slices.Contains(ModesOf(o.Platform), m) {
			return fmt.Errorf("unknown mode %q; use %v", m, ModesOf(o.Platform))
		}
	}
	for _, n := range o.Lows {
		if n < 1 || n > 64 {
			return fmt.Errorf("%d low tenants are out of range; use 1 to 64", n)
		}
	}
	switch {
	case !slices.Contains(virtual.Names(), o.Platform):
		return fmt.Errorf("platform %q is unknown; use %s", o.Platform, strings.Join(virtual.Names(), " or "))
	case o.Attached && !platform(o.Platform).OwnerSuspends:
		return fmt.Errorf("platform %s has no scenario without the shim; add --platform %s", o.Platform, ownerPlatform())
	case o.Rate <= 0 || o.Rate > 10000:
		return fmt.Errorf("rate %g is out of range; use up to 10000 requests a second", o.Rate)
	case o.HighUS < 1 || o.LowUS < 1 || o.HighUS > 10_000_000 || o.LowUS > 10_000_000:
		return errors.New("kernel length is out of range; use 1 to 10000000 us")
	case o.Seconds <= 0 || o.Seconds > 3600:
		return fmt.Errorf("%g seconds per mode are out of range; use up to 3600", o.Seconds)
	case o.Block < 500*time.Millisecond:
		return fmt.Errorf("a block of %v is too short; use at least 500ms", o.Block)
	case o.Fault != "" && !slices.Contains([]string{bench.FaultShimInert, bench.FaultSuspendNoop, bench.FaultTimesliceIgnored}, o.Fault):
		return fmt.Errorf("unknown fault %q", o.Fault)
	case o.Fault != "" && !o.Virtual:
		return errors.New("faults are only for the virtual GPU; add --virtual")
	}
	return nil
}

// plan returns the plan of one scenario.
func (o *CompareOptions) plan(lows int, progress func(string)) plan {
	p := plan{
		lows: lows, modes: o.Modes, block: o.Block, lowBlock: min(o.Block, time.Second),
		// The head covers the time until the mode takes effect and shims publish their counters;
		// the tail is longer than most waits.
		edge:    bench.Trim{Head: 200 * time.Millisecond, Tail: 50 * time.Millisecond},
		holdFor: 200 * time.Millisecond, seed: o.Seed,
		work:     bench.Workload{HighRate: o.Rate, HighUS: o.HighUS, LowUS: o.LowUS},
		progress: progress, deep: ModeLv3, noSlices: platform(o.Platform).OwnerSuspends,
	}
	if p.noSlices {
		p.deep = ModeLv2
	}
	p.rounds = max(int(o.Seconds/o.Block.Seconds()+0.5), 1)
	return p
}

// plans returns the plans of all scenarios.
func (o *CompareOptions) plans(progress func(string)) (all []plan) {
	for _, lows := range o.Lows {
		all = append(all, o.plan(lows, progress))
	}
	if o.Attached {
		p := o.plan(1, progress)
		p.attached, p.deep = true, ModeLv3
		p.modes = []string{ModeAlone, ModeNative, ModeLv3}
		all = append(all, p)
	}
	return all
}

// Compare measures. It returns a result only if its proof holds, else an ErrProof that names
// the failed check. Then it writes nothing.
func Compare(ctx context.Context, o CompareOptions) (*Result, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	res := &Result{
		Device: "GPU", Date: time.Now(), Machine: bench.ThisMachine(), Seed: o.Seed,
		Workload: bench.Workload{HighRate: o.Rate, HighUS: o.HighUS, LowUS: o.LowUS},
	}
	open := bench.OpenRunning
	if o.Virtual {
		open = func(ctx context.Context, exe, _ string) (*bench.Rig, error) {
			return bench.OpenPrivate(ctx, exe, bench.Private{Platform: o.Platform, Fault: o.Fault})
		}
	}
	r, err := open(ctx, o.Exe, o.Dir)
	if err != nil {
		return nil, bench.WithContext(ctx, err)
	}
	defer r.Close()
	if r.Virtual {
		res.Device, res.Platform = bench.VirtualDevice, r.Platform
	}
	steps := 0
	if o.Memory {
		steps++
	}
	plans := o.plans(nil)
	for i := range plans {
		steps += plans[i].steps()
	}
	bar := bench.NewMeter(o.Progress, steps)
	defer bar.Finish()
	for _, p := range o.plans(bar.Step) {
		r.Attached = p.attached
		s, err := scenario(ctx, p, r.Daemon, r.Device, func(i int) (*bench.Tenant, error) { return r.StartTenant(i, p.work) })
		if err != nil {
			return nil, bench.WithContext(ctx, err)
		}
		res.Scenarios = append(res.Scenarios, *s)
		res.Machine.Scheduling = r.Scheduling
	}
	if o.Memory {
		bar.Step(memoryScene)
		if res.Memory, err = runMemory(ctx, &o); err != nil {
			return nil, bench.WithContext(ctx, err)
		}
	}
	bar.Finish()
	if o.Out != "" {
		if err := report.Save(o.Out, map[string]func(io.Writer) error{"result.json": res.WriteJSON, "report.html": res.WriteReport}); err != nil {
			return nil, err
		}
	}
	return res, nil
}
