// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/bench/demo"
	"xsched/internal/virtual"
)

func benchCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "bench",
		Short:   "Run benchmarks",
		Example: `  xsched bench pair --virtual --lows 3`,
	}
	onlySubcommands(c)
	c.AddCommand(pairCommand(a), modesCommand(a), overheadCommand(a))
	return c
}

// benchPair is the command bench pair.
type benchPair struct {
	app    *app
	o      demo.CompareOptions
	asJSON bool
}

func pairCommand(a *app) *cobra.Command {
	p := &benchPair{app: a}
	c := &cobra.Command{
		Use:   "pair",
		Short: "Compare modes with one high-priority and several low-priority tenants",
		Long: `Start one high-priority tenant (short kernels at a fixed rate) and low-priority
tenants (long kernels, back to back). Switch the modes in random blocks and
compare them: alone, native, xsched-lv1 (launches held) and xsched-lv3
(timeslices and suspension in mid-kernel).

The result is printed only if it can be verified: every launch counted by the
shim was executed, checksums match, and preemptions happened exactly where they
should. Otherwise the command fails with the violated check.

--virtual starts a private daemon and virtual GPU. Without it, the command uses
the running daemon, switches its mode during the measurement and restores it.`,
		Example: `  xsched bench pair --virtual
  xsched bench pair --lows 1,3 --rate 20 --high-us 3000 --low-us 130000 --seconds 30 --out out/pair`,
		Args: noArgs,
		RunE: p.run,
	}
	p.flags(c)
	return c
}

func (p *benchPair) flags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&p.o.Virtual, "virtual", false, "use a private daemon and virtual GPU")
	f.StringVar(&p.o.Platform, "platform", virtual.Default().Name, "with --virtual: emulated driver, "+platformNames())
	f.BoolVar(&p.o.Attached, "attached", false, "add a scenario whose low-priority tenant has no shim and is attached, where the platform supports it")
	f.IntSliceVar(&p.o.Lows, "lows", []int{1}, "numbers of low-priority tenants, one scenario each")
	f.Float64Var(&p.o.Rate, "rate", 100, "requests per second of the high-priority tenant")
	f.IntVar(&p.o.HighUS, "high-us", 90, "kernel length of the high-priority tenant in us")
	f.IntVar(&p.o.LowUS, "low-us", 20000, "kernel length of the low-priority tenants in us")
	f.Float64Var(&p.o.Seconds, "seconds", 4, "measurement time per mode in seconds")
	f.DurationVar(&p.o.Block, "block", 0, "length of one block (default 2s)")
	f.StringSliceVar(&p.o.Modes, "modes", nil, "modes to compare (default "+strings.Join(demo.ModesOf(virtual.Default().Name), ",")+"; xsched-lv2 where the shim itself suspends)")
	f.Uint64Var(&p.o.Seed, "seed", 0, "random seed of the block order (0: random)")
	f.StringVar(&p.o.Out, "out", "", "write result.json and report.html to `DIR`")
	jsonFlag(c, &p.asJSON)
}

func (p *benchPair) run(cmd *cobra.Command, _ []string) error {
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	if err := checkPlatform(p.o.Platform); err != nil {
		return err
	}
	for _, m := range p.o.Modes {
		if known := demo.ModesOf(p.o.Platform); !slices.Contains(known, m) {
			return usagef("unknown mode %q; use %s", m, strings.Join(known, ", "))
		}
	}
	if !p.o.Virtual {
		daemon, running, err := p.app.connect(ctx)
		if err != nil {
			return err
		}
		daemon.Close()
		p.o.Dir = running.Dir
	}
	p.o.Progress = os.Stderr
	result, err := demo.Compare(ctx, p.o)
	if err != nil {
		return interrupted(ctx, err)
	}
	if p.asJSON {
		return result.WriteJSON(p.app.stdout)
	}
	if err := result.WriteTable(p.app.stdout); err != nil {
		return err
	}
	if p.o.Out != "" {
		fmt.Fprintf(p.app.stdout, "\nwritten: %s/result.json, %s/report.html\n", p.o.Out, p.o.Out)
	}
	return nil
}

// interrupted replaces the error if the user interrupted the command.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return exitError{130, errors.New("interrupted; no result was written")}
	}
	return err
}
