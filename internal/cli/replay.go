// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/record"
	"xsched/internal/sim"
)

func replayCommand(a *app) *cobra.Command {
	var (
		policy string
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "replay RECORDING",
		Short: "Check a recording or replay it under another policy",
		Long: `Read a recording of ` + "`xsched serve --record FILE`" + ` (FILE, FILE.1 and so on), run it
through this version's engine and check that it makes the same decisions.

With --policy, simulate the recorded load under the recorded policy and under
another one, and compare latency (of busy periods) and throughput (GPU time). A
recording has no GPU time per request; the output names what is estimated.`,
		Example: `  xsched serve --record /var/tmp/xsched.rec
  xsched replay /var/tmp/xsched.rec
  xsched replay /var/tmp/xsched.rec --policy FIFO`,
		Args: positional("RECORDING"),
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
				_, err := fmt.Fprintf(a.stdout, "%s\nuse --policy P to simulate another policy: native, %s\n", rec.Summary(), strings.Join(sim.Policies(), ", "))
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
	c.Flags().StringVar(&policy, "policy", "", "simulate `POLICY` or POLICY:MODE (default: only check the recording)")
	jsonFlag(c, &asJSON)
	return c
}
