// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"xsched/internal/bench/modes"
	"xsched/internal/report"
)

func modesCommand(a *app) *cobra.Command {
	var (
		o      modes.Options
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "modes",
		Short: "Compare global, private and application-level scheduling",
		Long: `Run a program with a latency-critical process (requests at a fixed rate) and a
background process (kernels back to back) on a private virtual GPU. Compare the
schedulers in turns of random order:

  native  no scheduler; the hardware timeslices
  GLB     the daemon
  LCL     a private daemon, as started by ` + "`xsched run --local`" + `
  APP     the program itself, which suspends and resumes the background process
          through the API; submitted work runs to completion

The result is printed only if it can be verified: results are correct, every
intercepted launch was executed, only the scheduler of each mode acted, and the
device's timeline agrees. Otherwise the command fails with the violated check.`,
		Example: `  xsched bench modes
  xsched bench modes --policy UP --seconds 10 --out out/modes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			o.Progress = os.Stderr
			result, err := modes.Run(ctx, o)
			if err != nil {
				return interrupted(ctx, err)
			}
			if o.Out != "" {
				if err := report.Save(o.Out, map[string]func(io.Writer) error{"result.json": result.WriteJSON, "report.html": result.WriteReport}); err != nil {
					return err
				}
			}
			if asJSON {
				return result.WriteJSON(a.stdout)
			}
			if err := result.WriteTable(a.stdout); err != nil || o.Out == "" {
				return err
			}
			fmt.Fprintf(a.stdout, "\nwritten: %s/result.json, %s/report.html\n", o.Out, o.Out)
			return nil
		},
	}
	f := c.Flags()
	f.Float64Var(&o.Rate, "rate", 50, "requests per second")
	f.IntVar(&o.HighUS, "high-us", 5000, "kernel length of a request in us")
	f.IntVar(&o.LowUS, "low-us", 1000, "kernel length of the background process in us")
	f.Float64Var(&o.Seconds, "seconds", 4, "measurement time per mode in seconds")
	f.IntVar(&o.Rounds, "turns", 2, "number of turns per mode")
	f.StringVar(&o.Policy, "policy", "HPF", "scheduling policy of the daemons")
	f.Uint64Var(&o.Seed, "seed", 0, "random seed of the turn order (0: random)")
	f.StringVar(&o.Out, "out", "", "write result.json and report.html to `DIR`")
	jsonFlag(c, &asJSON)
	return c
}
