// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"

	"github.com/spf13/cobra"

	"xsched/internal/bench/modes"
)

func (a *app) modesCommand() *cobra.Command {
	var (
		o      modes.Options
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "modes",
		Short: "One program scheduled by the daemon, by its own one, and by itself",
		Long: `Runs one program of two processes, an urgent one (requests at a fixed rate) and
one in the background (kernels back to back), on a virtual GPU of its own, in turns
of random order, and compares who schedules it:

  native  nobody; the hardware shares as it likes
  GLB     the daemon
  LCL     a private daemon, as ` + "`xsched run --local`" + ` starts it
  APP     the program itself: around a request it suspends and resumes the
          background through the API; what is on the GPU runs to its end

The comparison is printed only if its proof holds: results are right, what the
shim intercepted was executed, each mode's scheduler and no other acted, and the
device's own timeline agrees. Otherwise the command fails and says what did not hold.`,
		Example: `  xsched bench modes
  xsched bench modes --policy UP --seconds 10 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			o.Progress = os.Stderr
			result, err := modes.Run(ctx, o)
			if err != nil {
				return interrupted(ctx, err)
			}
			if asJSON {
				return result.WriteJSON(a.stdout)
			}
			return result.WriteTable(a.stdout)
		},
	}
	f := c.Flags()
	f.Float64Var(&o.Rate, "rate", 50, "requests a second")
	f.IntVar(&o.HighUS, "high-us", 5000, "length of a request's kernel in us")
	f.IntVar(&o.LowUS, "low-us", 1000, "length of the background's kernels in us")
	f.Float64Var(&o.Seconds, "seconds", 4, "time for each mode")
	f.IntVar(&o.Rounds, "turns", 2, "turns in which that time is measured")
	f.StringVar(&o.Policy, "policy", "HPF", "policy of the daemons")
	f.Uint64Var(&o.Seed, "seed", 0, "of the order of the turns (0: a new one)")
	jsonFlag(c, &asJSON)
	return c
}
