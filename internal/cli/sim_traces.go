// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"xsched/internal/sim/fleet"
	"xsched/internal/sim/fleet/traces"
)

// publicTrace is a trace in the format of its publisher, and the nodes that it ran on.
type publicTrace struct {
	traces.Assumptions
	from, list string
}

func (p *publicTrace) flags(f *pflag.FlagSet) {
	p.Assumptions = traces.Defaults()
	f.StringVar(&p.from, "from", "", "`FORMAT` of --trace: "+traces.Formats())
	f.StringVar(&p.list, "fleet", "", "read nodes with different GPUs from the CSV `FILE`: columns nodes, gpus, memory_gib, model, or the list of nodes of --from")
	f.DurationVar(&p.Start, "start", 0, "of the part of a --from trace, after its first arrival")
	f.Float64Var(&p.Memory, "assume-memory", p.Memory, "`GiB` that pods of a --from trace use for each GPU that they request")
	f.Float64Var(&p.Load, "assume-load", p.Load, "part of its request that a service of a --from trace uses at its peak")
	f.DurationVar(&p.Kernel, "assume-kernel", p.Kernel, "length of the kernels of jobs of a --from trace")
}

// nodes reads the list of nodes.
func (p *publicTrace) nodes(cmd *cobra.Command, c *fleet.Config) error {
	if p.list == "" {
		return nil
	}
	if cmd.Flags().Changed("gpus") || cmd.Flags().Changed("memory") {
		return usagef("--fleet replaces --gpus and --memory; use one or the other")
	}
	f, err := os.Open(p.list)
	if err != nil {
		return fmt.Errorf("open nodes: %w", err)
	}
	defer func() { _ = f.Close() }()
	if c.List, err = traces.ReadNodes(p.from, f); err != nil {
		return fmt.Errorf("%s: %w", p.list, err)
	}
	if !cmd.Flags().Changed("nodes") {
		c.Nodes = len(c.List)
	}
	return nil
}

func (p *publicTrace) read(path string) (*traces.Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	defer func() { _ = f.Close() }()
	t, err := traces.Read(p.from, f, p.Assumptions)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}
