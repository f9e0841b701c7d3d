// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/record"
	"xsched/internal/sim"
)

func (a *app) replayCommand() *cobra.Command {
	var (
		policy string
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "replay RECORDING",
		Short: "What another policy would have done with a recorded day",
		Long: `Reads what ` + "`xsched serve --record FILE`" + ` wrote (FILE, FILE.1 and so on), runs it
through the engine of this program and says whether the same decisions come out.

With --policy it simulates what the recorded programs wanted, once under the
recorded policy and once under the other one, and shows the difference in
latency (of busy periods) and throughput (GPU time). How much GPU time a request
needed is not in a recording: the output says what is estimated.`,
		Example: `  xsched serve --record /var/tmp/xsched.rec
  xsched replay /var/tmp/xsched.rec
  xsched replay /var/tmp/xsched.rec --policy FIFO`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := record.Open(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = r.Close() }()
			rec, err := sim.ReadRecording(r)
			if err != nil {
				return err
			}
			if policy == "" && !asJSON {
				_, err := fmt.Fprintf(a.stdout, "%s\n`--policy P` shows what P would have done: native, %s\n", rec.Summary(), strings.Join(sim.Policies(), ", "))
				return err
			}
			if policy == "" {
				policy = rec.Policy + ":" + string(rec.Mode)
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			res, err := sim.Replay(ctx, rec, policy)
			if err != nil {
				return interrupted(ctx, err)
			}
			if asJSON {
				return res.WriteJSON(a.stdout)
			}
			fmt.Fprintln(a.stdout, rec.Summary())
			return res.WriteTable(a.stdout)
		},
	}
	c.Flags().StringVar(&policy, "policy", "", "policy to try, as POLICY or POLICY:MODE (default: only check the recording)")
	jsonFlag(c, &asJSON)
	return c
}
