// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"xsched/internal/bench/overhead"
)

func overheadCommand(a *app) *cobra.Command {
	var (
		o      overhead.Options
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "overhead",
		Short: "Measure the overhead of launches, wake-ups and decisions",
		Long: `Measure four costs and compare them with their budgets; fail if one is exceeded:

  - the hook's cost per launch, on a null driver with and without the shim
  - the hook's cost per launch and synchronization of a program alone on its GPU
  - the time from a program's first launch to the daemon's decision, next to
    another program and with one busy core
  - one decision with 1,000 queues

It also shows what the hook adds to a launch with 1, 8 and 64 streams in turn, and
with 1, 2 and 8 threads that launch and wait in a stream each.

Requires the null driver from the source tree; ` + "`make bench`" + ` builds it and runs
this command.`,
		Example: `  xsched bench overhead --null build/null`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Launches < 10000 || o.Seconds < 1 {
				return usagef("the measurement is too short; use at least 10000 launches and 1 second")
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			result, err := overhead.Measure(ctx, o)
			if err != nil {
				return interrupted(ctx, err)
			}
			if asJSON {
				encoder := json.NewEncoder(a.stdout)
				encoder.SetIndent("", "  ")
				err = encoder.Encode(result)
			} else {
				err = result.WriteTable(a.stdout)
			}
			if err == nil && !result.OK() {
				err = errors.New("a budget was exceeded; repeat the measurement on an idle machine")
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Null, "null", "build/null", "use the null driver and launch loop in `DIR`")
	f.IntVar(&o.Launches, "launches", 10_000_000, "launches per run")
	f.Float64Var(&o.Seconds, "seconds", 5, "duration of the wake-up measurement in seconds")
	jsonFlag(c, &asJSON)
	return c
}
