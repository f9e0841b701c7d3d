// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/bench/demo"
	"xsched/internal/virtual"
)

func (a *app) benchCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "bench",
		Short:   "Measure what the scheduler does for a program",
		Example: `  xsched bench pair --virtual --lows 3`,
	}
	onlySubcommands(c)
	c.AddCommand(a.pairCommand(), a.modesCommand(), a.overheadCommand())
	return c
}

func (a *app) pairCommand() *cobra.Command {
	var (
		o      demo.CompareOptions
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "pair",
		Short: "One high-priority tenant beside low-priority ones, in every mode",
		Long: `Starts one high tenant (short kernels at a fixed rate) and low tenants (long
kernels, back to back), switches the modes live in random blocks, and compares:
alone, native, xsched-lv1 (launches held), xsched-lv3 (timeslices and
suspension in mid-kernel).

The comparison is printed only if its proof holds: every launch counted by the
shim was executed, checksums are right, preemptions happened where they must
and only there. Otherwise the command fails and says what did not hold.

--virtual starts a daemon and a virtual GPU of its own. Without it the daemon
that runs is used, its mode is switched during the measurement and put back.`,
		Example: `  xsched bench pair --virtual
  xsched bench pair --lows 1,3 --rate 20 --high-us 3000 --low-us 130000 --seconds 30 --out out/pair`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			if !o.Virtual {
				client, running, err := a.connect(ctx)
				if err != nil {
					return err
				}
				client.Close()
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
	f.BoolVar(&o.Virtual, "virtual", false, "own daemon on the virtual GPU")
	f.StringVar(&o.Platform, "platform", virtual.Default().Name, "with --virtual: driver that the virtual GPU implements, "+platformNames())
	f.BoolVar(&o.Attached, "attached", false, "one more scenario whose best-effort tenant runs without the shim and is suspended from outside, where the platform supports it")
	f.IntSliceVar(&o.Lows, "lows", []int{1}, "numbers of low tenants, one scenario each")
	f.Float64Var(&o.Rate, "rate", 100, "the high tenant's requests a second")
	f.IntVar(&o.HighUS, "high-us", 90, "length of its kernels in us")
	f.IntVar(&o.LowUS, "low-us", 20000, "length of the low tenants' kernels in us")
	f.Float64Var(&o.Seconds, "seconds", 4, "time for each mode")
	f.DurationVar(&o.Block, "block", 0, "length of one block of a mode (default 2s)")
	f.StringSliceVar(&o.Modes, "modes", nil, "modes to compare (default "+strings.Join(demo.ModesOf(virtual.Default().Name), ",")+"; xsched-lv2 where the shim itself suspends)")
	f.Uint64Var(&o.Seed, "seed", 0, "of the order of the blocks (0: a new one)")
	f.StringVar(&o.Out, "out", "", "folder for result.json and report.html (default none)")
	jsonFlag(c, &asJSON)
	return c
}

// interrupted says so when the user did it.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return exitError{130, fmt.Errorf("interrupted; nothing was written")}
	}
	return err
}
