// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/sim/fleet"
)

func simFleetCommand(a *app) *cobra.Command {
	o := fleet.Options{Config: fleet.Config{Length: 24 * time.Hour}}
	var (
		mix, trace, score  string
		html, writeTrace   string
		modes              []string
		asJSON, sweep, one bool
	)
	c := &cobra.Command{
		Use:   "fleet",
		Short: "Find how many GPUs a cluster needs with and without XSched",
		Long: `Simulate a day of a Kubernetes cluster and search the smallest fleet, up to --nodes,
that keeps every service's P99 within its target and ends 95 % of batch jobs in time
(twice their run time alone, and 10 minutes). Compare exclusive GPUs, the driver's
time-slicing, MPS and XSched, each under its best configuration.

The outcome of the tenants of one GPU is tabulated with the daemon's own engine.
Placement follows Kubernetes: shares and memory of a GPU are never oversold.
docs/kubernetes/capacity.md describes traces, the model and its limits. Equal
traces, mixes and seeds give equal results.`,
		Example: `  xsched sim fleet --nodes 100 --mix online
  xsched sim fleet --nodes 1000 --gpus 8 --mode XSched --fixed
  xsched sim fleet --nodes 50 --mix mixed --sweep --html fleet.html
  xsched sim fleet --nodes 20 --mix mixed --write-trace day.csv
  xsched sim fleet --nodes 20 --trace day.csv --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Config.Score, err = fleet.ParseScore(score); err != nil {
				return usageError{err}
			}
			if o.Sharings, err = sharings(modes); err != nil {
				return usageError{err}
			}
			switch {
			case trace != "" && (cmd.Flags().Changed("mix") || sweep || writeTrace != "" || cmd.Flags().Changed("load")):
				return usagef("--trace replaces --mix, --load, --sweep and --write-trace; use one or the other")
			case trace != "":
				if o.Pods, err = fleet.LoadTrace(trace); err != nil {
					return err
				}
				o.Source = "trace " + trace
			default:
				if o.Mix, err = fleet.FindMix(mix); err != nil {
					return usageError{err}
				}
				if sweep {
					o.Loads = []float64{0.25, 0.5, 0.75, 1}
				}
			}
			if writeTrace != "" {
				pods, err := o.Generate()
				if err != nil {
					return err
				}
				return a.writeOut(writeTrace, func(w io.Writer) error { return fleet.WriteTrace(w, pods) })
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			var done func()
			o.Fixed = one
			o.Progress, done = a.simProgress()
			start := time.Now()
			s, err := fleet.Compare(ctx, o)
			done()
			if err != nil {
				return interrupted(ctx, err)
			}
			if html != "" {
				if err := a.writeOut(html, s.WriteHTML); err != nil || html == "-" {
					return err
				}
			}
			if asJSON {
				return a.printJSON(s)
			}
			if err := s.WriteText(a.stdout); err != nil {
				return err
			}
			fmt.Fprintf(a.stderr, "%.1f s\n", time.Since(start).Seconds())
			return nil
		},
	}
	f := c.Flags()
	f.IntVar(&o.Config.Nodes, "nodes", 100, "number of nodes, at most")
	f.IntVar(&o.Config.GPUs, "gpus", 8, "GPUs of each node")
	f.IntVar(&o.Config.Memory, "memory", fleet.DefaultMemory, "memory of each GPU in `GiB`")
	f.DurationVar(&o.Config.Length, "duration", 24*time.Hour, "simulated time")
	f.Uint64Var(&o.Seed, "seed", 1, "random seed of the mix")
	f.StringVar(&mix, "mix", "mixed", "synthetic load: "+fleet.MixNames())
	f.Float64Var(&o.Load, "load", 0.75, "size of the mix, relative to all GPUs")
	f.StringVar(&trace, "trace", "", "read pods from the CSV `FILE` instead of a mix")
	f.StringVar(&writeTrace, "write-trace", "", "write the pods of the mix to `FILE` and end")
	f.StringSliceVar(&modes, "mode", []string{"all"}, "modes to compare: exclusive, time-slicing, MPS, XSched or all")
	f.StringVar(&score, "score", string(fleet.MostAllocated), "choice among nodes that fit: most, least (allocated) or first")
	f.BoolVar(&o.Config.Preempt, "preempt", false, "let services evict batch jobs, as PriorityClasses do")
	f.BoolVar(&o.Config.Strict, "fifo", false, "let a pod that does not fit hold up those behind it")
	f.Float64Var(&o.Config.Cost, "cost", 1, "factor on XSched's switching costs: 0, 0.5, 1 or 1.5")
	f.BoolVar(&one, "fixed", false, "simulate this fleet instead of searching the smallest one")
	f.BoolVar(&sweep, "sweep", false, "also search at a quarter, half and three quarters of the load")
	f.StringVar(&html, "html", "", "write a page with table and charts to `FILE`")
	jsonFlag(c, &asJSON)
	return c
}

// sharings returns the modes to compare.
func sharings(names []string) (out []fleet.Sharing, err error) {
	for _, name := range names {
		if name == "all" {
			return fleet.Sharings(), nil
		}
		how, err := fleet.ParseSharing(name)
		if err != nil {
			return nil, err
		}
		out = append(out, how)
	}
	if len(out) == 0 {
		return fleet.Sharings(), nil
	}
	return out, nil
}
