// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"xsched/internal/bench/pair"
	"xsched/internal/virtual"
)

func (a *app) colocateCommand() *cobra.Command {
	var (
		o                     pair.Options
		asJSON, check, output bool
	)
	c := &cobra.Command{
		Use:   "pair --online CMD --offline CMD",
		Short: "Run an online and an offline program on one GPU, and report what it costs both",
		Long: `Starts a daemon of its own, runs the offline program alone for a while, then the
online one beside it. Whenever a request of the online program arrives the offline
program's hardware queues are suspended, and resumed after the request or after
--slice; queues that appear meanwhile are suspended too.

The report has each target of such a pair (suspend below 5 ms, resume below 10 ms, an
online request below 50 ms, offline throughput down by less than 5 %, nothing lost), what
was measured, and whether it was met. It refuses to report on programs that never met.

A request is a time in which the online program has work on the GPU. Both commands are
run by a shell. The measurement ends with the online program, or after --seconds; the
offline program may go on for --linger to end by itself.

With --attach the offline program runs without our library and is stopped from outside.`,
		Example: `  xsched pair --online ./serve --offline ./train
  xsched pair --virtual --platform ` + otherPlatform() + ` --online ./serve --offline ./train --out out/pair
  xsched pair --attach --slice 100ms --online ./serve --offline ./train --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkPlatform(o.Platform); err != nil {
				return err
			}
			if cmd.Flags().Changed("platform") && !o.Virtual {
				return usagef("--platform is the virtual GPU's; add --virtual")
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			if output {
				o.Output = a.stderr
			}
			report, err := pair.Run(ctx, o)
			if err != nil {
				return interrupted(ctx, err)
			}
			if asJSON {
				err = report.WriteJSON(a.stdout)
			} else if err = report.WriteTable(a.stdout); err == nil && o.Out != "" {
				fmt.Fprintf(a.stdout, "\nwritten: %s/pair.json, %s/pair.md\n", o.Out, o.Out)
			}
			if err == nil && check && !report.Met() {
				err = fmt.Errorf("a target was missed; the report says which")
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Online, "online", "", "command of the program whose requests come first")
	f.StringVar(&o.Offline, "offline", "", "command of the program that runs in between")
	f.BoolVar(&o.Virtual, "virtual", false, "on the virtual GPU")
	f.StringVar(&o.Platform, "platform", virtual.Default().Name, "with --virtual: driver that the virtual GPU implements, "+platformNames())
	f.BoolVar(&o.Attach, "attach", false, "run the offline program without our library and stop it from outside")
	f.DurationVar(&o.Slice, "slice", 0, "the longest the offline program stands still while requests last (default the daemon's starvation bound)")
	f.DurationVar(&o.Alone, "alone", 0, "how long the offline program is measured alone (default 2s)")
	f.DurationVar(&o.Together, "seconds", 0, "how long at most both are measured (default until the online program ends)")
	f.DurationVar(&o.Linger, "linger", 0, "how long the offline program may go on afterwards to end by itself (default 10s)")
	f.StringVar(&o.Out, "out", "", "folder for pair.json and pair.md (default none)")
	f.BoolVar(&check, "check", false, "fail if a target is missed")
	f.BoolVar(&output, "output", false, "show what the programs write, on standard error")
	jsonFlag(c, &asJSON)
	return c
}
