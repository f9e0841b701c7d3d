// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"

	"github.com/spf13/cobra"

	"xsched/internal/bench"
)

func (a *app) demoCommand() *cobra.Command {
	var o bench.DemoOptions
	c := &cobra.Command{
		Use:   "demo",
		Short: "See it work on the virtual GPU, in under a minute",
		Long: `Starts a daemon and a virtual GPU of its own, and compares one high-priority
tenant beside one and beside three low-priority tenants: alone, native, XSched
at level 1 and at level 3. Prints a table and writes result.json and report.html
(latency distribution, timeline of who had the GPU). Needs no GPU and no root,
and leaves nothing behind but the two files.

With --platform amd the tenants are HIP programs: the low ones are paused at level 2 by
their own shims (UPDATE_QUEUE), and in one more scenario a low one without the shim is
suspended at level 3 from outside, in the role of its debugger.`,
		Example: `  xsched demo
  xsched demo --platform amd
  xsched demo --out /tmp/demo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkPlatform(o.Platform); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			o.Stdout, o.Progress = a.stdout, os.Stderr
			if err := bench.Demo(ctx, o); err != nil {
				return interrupted(ctx, err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&o.Out, "out", "out/demo", "folder for result.json and report.html")
	c.Flags().StringVar(&o.Platform, "platform", platformNVIDIA, "whose driver the virtual GPU plays: nvidia or amd")
	c.Flags().Uint64Var(&o.Seed, "seed", 0, "of the order of the blocks (0: a new one)")
	return c
}
