// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"xsched/internal/embedded"
	"xsched/internal/report"
)

// PairOptions is one measurement: one high tenant and some low ones. Zero
// values mean the defaults.
type PairOptions struct {
	Virtual bool   // own daemon on the virtual GPU; else the one in Dir
	Dir     string // sockets of the running daemon
	// Platform is whose driver the virtual GPU plays; default nvidia.
	Platform string
	Lows     []int // one scenario each; default 1

	Rate    float64       // the high tenant's requests a second; default 100
	HighUS  int           // length of its kernels; default 90
	LowUS   int           // length of the low tenants' kernels; default 20000
	Seconds float64       // time per mode; default 4
	Block   time.Duration // length of a block; default 2 s
	Modes   []string      // default all
	// Attached adds a scenario with one low tenant that has no shim and is stopped from outside.
	Attached bool
	Seed     uint64 // of the order of the blocks; 0: a new one

	Out      string   // folder for result.json and report.html; empty: none
	Progress *os.File // where the progress bar goes; quiet if not a terminal

	// Fault makes the device or the shim fail on purpose; see FaultShimInert.
	Fault string
	// Exe is the xsched program; empty: this one.
	Exe string
}

func (o *PairOptions) defaults() error {
	if len(o.Lows) == 0 {
		o.Lows = []int{1}
	}
	setDefault(&o.Platform, PlatformNVIDIA)
	setDefault(&o.Rate, 100)
	setDefault(&o.HighUS, 90)
	setDefault(&o.LowUS, 20000)
	setDefault(&o.Seconds, 4)
	setDefault(&o.Block, 2*time.Second)
	if len(o.Modes) == 0 {
		o.Modes = ModesOf(o.Platform)
	}
	for o.Seed == 0 {
		o.Seed = uint64(rand.Uint32())
	}
	for _, m := range o.Modes {
		if !has(ModesOf(o.Platform), m) {
			return fmt.Errorf("unknown mode %q; use %v", m, ModesOf(o.Platform))
		}
	}
	for _, n := range o.Lows {
		if n < 1 || n > 64 {
			return fmt.Errorf("%d low tenants are out of range; use 1 to 64", n)
		}
	}
	switch {
	case o.Platform != PlatformNVIDIA && o.Platform != PlatformAMD:
		return fmt.Errorf("platform %q is unknown; use %s or %s", o.Platform, PlatformNVIDIA, PlatformAMD)
	case o.Attached && o.Platform != PlatformAMD:
		return errors.New("low tenants without the shim are measured on the virtual AMD GPU only; add --platform amd")
	case o.Rate <= 0 || o.Rate > 10000:
		return fmt.Errorf("rate %g is out of range; use up to 10000 requests a second", o.Rate)
	case o.HighUS < 1 || o.LowUS < 1 || o.HighUS > 10_000_000 || o.LowUS > 10_000_000:
		return errors.New("kernel length is out of range; use 1 to 10000000 us")
	case o.Seconds <= 0 || o.Seconds > 3600:
		return fmt.Errorf("%g seconds per mode are out of range; use up to 3600", o.Seconds)
	case o.Block < 500*time.Millisecond:
		return fmt.Errorf("a block of %v is too short; use at least 500ms", o.Block)
	case o.Fault != "" && !has([]string{FaultShimInert, FaultSuspendNoop, FaultTimesliceIgnored}, o.Fault):
		return fmt.Errorf("unknown fault %q", o.Fault)
	case o.Fault != "" && !o.Virtual:
		return errors.New("faults are only for the virtual GPU; add --virtual")
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

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// plan is how one scenario of the options is run.
func (o *PairOptions) plan(lows int, progress func(string)) plan {
	p := plan{
		lows: lows, modes: o.Modes, block: o.Block, lowBlock: min(o.Block, time.Second),
		// The head covers the mode's way to the hardware and a shim's publishing
		// of its counters; the tail is longer than most waits.
		edge:    trim{head: 200 * time.Millisecond, tail: 50 * time.Millisecond},
		holdFor: 200 * time.Millisecond, seed: o.Seed,
		work:     Workload{HighRate: o.Rate, HighUS: o.HighUS, LowUS: o.LowUS},
		progress: progress, deep: ModeLv3, noSlices: o.Platform == PlatformAMD,
	}
	if o.Platform == PlatformAMD {
		p.deep = ModeLv2
	}
	p.rounds = max(int(o.Seconds/o.Block.Seconds()+0.5), 1)
	return p
}

// plans are those of all scenarios.
func (o *PairOptions) plans(progress func(string)) (all []plan) {
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

// Pair measures. A result comes back only if its proof holds: else the error
// is an ErrProof that names what failed, and nothing is written.
func Pair(ctx context.Context, o PairOptions) (*Result, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	res := &Result{
		Device: "GPU", Date: time.Now(), Machine: thisMachine(), Seed: o.Seed,
		Workload: Workload{HighRate: o.Rate, HighUS: o.HighUS, LowUS: o.LowUS},
	}
	tenantPath, err := embedded.Unpack(embedded.Tenant)
	if err != nil {
		return nil, fmt.Errorf("unpack the tenant: %w", err)
	}
	open := func() (*rig, error) { return openRunning(ctx, o.Exe, o.Dir) }
	if o.Virtual {
		open = func() (*rig, error) { return openVirtual(ctx, o.Exe, o.Platform, o.Fault) }
	}
	r, err := open()
	if err != nil {
		return nil, restoreErr(ctx, err)
	}
	defer r.close()
	r.tenant = tenantPath
	if r.virtual {
		res.Device, res.Platform = VirtualDevice, r.platform
	}
	steps := 0
	plans := o.plans(nil)
	for i := range plans {
		steps += plans[i].steps()
	}
	bar := newMeter(o.Progress, steps)
	defer bar.finish()
	for _, p := range o.plans(bar.step) {
		r.attached = p.attached
		s, err := scenario(ctx, p, r.daemon, r.device, func(i int) (*tenant, error) { return r.startTenant(i, p.work) })
		if err != nil {
			return nil, restoreErr(ctx, err)
		}
		res.Scenarios = append(res.Scenarios, *s)
		res.Machine.Scheduling = r.scheduling
	}
	bar.finish()
	if o.Out != "" {
		if err := report.Save(o.Out, map[string]func(io.Writer) error{"result.json": res.WriteJSON, "report.html": res.WriteReport}); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// meter is the progress bar; nil inside where nobody watches.
type meter struct{ b *progressbar.ProgressBar }

func newMeter(to *os.File, steps int) *meter {
	if to == nil || !term.IsTerminal(int(to.Fd())) {
		return &meter{}
	}
	return &meter{progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(to), progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(true), progressbar.OptionSetDescription("starting"))}
}

// step says what comes next; what came before is done.
func (b *meter) step(what string) {
	if b.b != nil {
		b.b.Describe(fmt.Sprintf("%-20s", what))
		_ = b.b.Add(1)
	}
}

func (b *meter) finish() {
	if b.b != nil {
		_ = b.b.Finish()
		b.b = nil
	}
}
