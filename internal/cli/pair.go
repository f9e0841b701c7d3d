// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
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
		Short: "Run an online and an offline program on one GPU and report the cost to each",
		Long: `Start a private daemon, run the offline program alone, then the online program
beside it. Each request of the online program suspends the offline program's
hardware queues. They resume after the request or after --slice. Queues created
in the meantime are suspended too.

The report compares each target with the measurement: suspend below 5 ms, resume
below 10 ms, an online request below 50 ms, offline throughput loss below 5 %, and
no lost work. Programs that never ran at the same time are not reported.

A request is a busy period of the online program. A shell runs both commands. The
measurement ends with the online program or after --seconds. The offline program
then has --linger to finish.

With --attach, the offline program runs without the shim and is attached.`,
		Example: `  xsched pair --online ./serve --offline ./train
  xsched pair --virtual --platform ` + otherPlatform() + ` --online ./serve --offline ./train --out out/pair
  xsched pair --attach --slice 100ms --online ./serve --offline ./train --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkPlatform(o.Platform); err != nil {
				return err
			}
			if o.Online == "" || o.Offline == "" {
				return usagef("both commands are required; use --online CMD --offline CMD")
			}
			if cmd.Flags().Changed("platform") && !o.Virtual {
				return usagef("--platform applies to the virtual GPU; add --virtual")
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
				err = errors.New("a target was missed; see the report above")
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Online, "online", "", "run `CMD` as the latency-critical program")
	f.StringVar(&o.Offline, "offline", "", "run `CMD` as the best-effort program")
	f.BoolVar(&o.Virtual, "virtual", false, "use the virtual GPU")
	f.StringVar(&o.Platform, "platform", virtual.Default().Name, "with --virtual: emulated driver, "+platformNames())
	f.BoolVar(&o.Attach, "attach", false, "run the offline program without the shim and attach to it")
	f.DurationVar(&o.Slice, "slice", 0, "longest suspension of the offline program during requests (default the starvation bound, 2s)")
	f.DurationVar(&o.Alone, "alone", 0, "duration of the offline program alone (default 2s)")
	f.DurationVar(&o.Together, "seconds", 0, "longest duration of both programs (default until the online program ends)")
	f.DurationVar(&o.Linger, "linger", 0, "time for each program to finish afterwards (default 10s)")
	f.StringVar(&o.Out, "out", "", "write pair.json and pair.md to `DIR`")
	f.BoolVar(&check, "check", false, "exit with code 1 if a target is missed")
	f.BoolVar(&output, "output", false, "show the output of the programs on standard error")
	jsonFlag(c, &asJSON)
	return c
}
