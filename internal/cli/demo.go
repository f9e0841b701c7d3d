// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"

	"github.com/spf13/cobra"

	"xsched/internal/bench/demo"
	"xsched/internal/virtual"
)

func demoCommand(a *app) *cobra.Command {
	var o demo.Options
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show XSched on the virtual GPU in under a minute",
		Long: `Start a private daemon and virtual GPU and run one high-priority tenant next to one
and next to three low-priority tenants: alone, native, XSched at level 1 and at
level 3. Print a table and write result.json and report.html with the latency
distribution and the GPU timeline. Requires neither a GPU nor root.

--platform selects another driver. Where only the owner of a queue can suspend it, the
shims of the low-priority tenants do so at level 2, and one more scenario suspends a
tenant without the shim at level 3, through a debugger.`,
		Example: `  xsched demo
  xsched demo --platform ` + otherPlatform() + `
  xsched demo --out /tmp/demo`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkPlatform(o.Platform); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			o.Stdout, o.Progress = a.stdout, os.Stderr
			if err := demo.Run(ctx, o); err != nil {
				return interrupted(ctx, err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&o.Out, "out", "out/demo", "write result.json and report.html to `DIR`")
	c.Flags().StringVar(&o.Platform, "platform", virtual.Default().Name, "emulated driver: "+platformNames())
	c.Flags().Uint64Var(&o.Seed, "seed", 0, "random seed of the block order (0: random)")
	return c
}
