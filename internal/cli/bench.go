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

func pairCommand(a *app) *cobra.Command {
	var (
		o      demo.CompareOptions
		asJSON bool
	)
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			if err := checkPlatform(o.Platform); err != nil {
				return err
			}
			for _, m := range o.Modes {
				if known := demo.ModesOf(o.Platform); !slices.Contains(known, m) {
					return usagef("unknown mode %q; use %s", m, strings.Join(known, ", "))
				}
			}
			if !o.Virtual {
				daemon, running, err := a.connect(ctx)
				if err != nil {
					return err
				}
				daemon.Close()
				o.Dir = running.Dir
			}
			o.Progress = os.Stderr
			result, err := demo.Compare(ctx, o)
			if err != nil {
				return interrupted(ctx, err)
			}
			if asJSON {
				return result.WriteJSON(a.stdout)
			}
			if err := result.WriteTable(a.stdout); err != nil {
				return err
			}
			if o.Out != "" {
				fmt.Fprintf(a.stdout, "\nwritten: %s/result.json, %s/report.html\n", o.Out, o.Out)
			}
			return nil
		},
	}
	f := c.Flags()
	f.BoolVar(&o.Virtual, "virtual", false, "use a private daemon and virtual GPU")
	f.StringVar(&o.Platform, "platform", virtual.Default().Name, "with --virtual: emulated driver, "+platformNames())
	f.BoolVar(&o.Attached, "attached", false, "add a scenario whose low-priority tenant has no shim and is attached, where the platform supports it")
	f.IntSliceVar(&o.Lows, "lows", []int{1}, "numbers of low-priority tenants, one scenario each")
	f.Float64Var(&o.Rate, "rate", 100, "requests per second of the high-priority tenant")
	f.IntVar(&o.HighUS, "high-us", 90, "kernel length of the high-priority tenant in us")
	f.IntVar(&o.LowUS, "low-us", 20000, "kernel length of the low-priority tenants in us")
	f.Float64Var(&o.Seconds, "seconds", 4, "measurement time per mode in seconds")
	f.DurationVar(&o.Block, "block", 0, "length of one block (default 2s)")
	f.StringSliceVar(&o.Modes, "modes", nil, "modes to compare (default "+strings.Join(demo.ModesOf(virtual.Default().Name), ",")+"; xsched-lv2 where the shim itself suspends)")
	f.Uint64Var(&o.Seed, "seed", 0, "random seed of the block order (0: random)")
	f.StringVar(&o.Out, "out", "", "write result.json and report.html to `DIR`")
	jsonFlag(c, &asJSON)
	return c
}

// interrupted replaces the error if the user interrupted the command.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return exitError{130, errors.New("interrupted; no result was written")}
	}
	return err
}
