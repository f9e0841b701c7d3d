// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"xsched/internal/bench/overhead"
)

func (a *app) overheadCommand() *cobra.Command {
	var (
		o      overhead.Options
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "overhead",
		Short: "What XSched itself costs: a launch, a wake-up, a decision",
		Long: `Measures four things on this machine, beside their budgets, and fails if one is
missed: what the hook adds to a launch (a loop on a driver that does nothing,
with and without the shim, in pairs), what it adds to work that is waited for
at once by a program that has the device to itself, how long the daemon takes
from a program's first launch to its decision (beside another program, with one
core kept busy), and the decision itself with 1,000 queues.

Needs the null driver of the source tree: ` + "`make bench`" + ` builds it and runs this.`,
		Example: `  xsched bench overhead --null build/null`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Launches < 10000 || o.Seconds < 1 {
				return usagef("too short to mean anything; use at least 10000 launches and 1 second")
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
				err = errors.New("a budget was missed; run it again on a quiet machine before you believe it")
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Null, "null", "build/null", "folder of the null driver and its launch loop")
	f.IntVar(&o.Launches, "launches", 10_000_000, "launches of one run of the loop")
	f.Float64Var(&o.Seconds, "seconds", 5, "time for the wake-up measurement")
	jsonFlag(c, &asJSON)
	return c
}
