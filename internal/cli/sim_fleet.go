// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/sim/fleet"
)

// fleetSearch is the command sim fleet.
type fleetSearch struct {
	app                *app
	o                  fleet.Options
	mix, trace, score  string
	html, writeTrace   string
	modes              []string
	asJSON, sweep, one bool
	public             publicTrace
}

func simFleetCommand(a *app) *cobra.Command {
	r := &fleetSearch{app: a, o: fleet.Options{Config: fleet.Config{Length: 24 * time.Hour}}}
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
  xsched sim fleet --nodes 20 --trace day.csv --json
  xsched sim fleet --trace openb_pod_list_default.csv --from alibaba-2023 --start 2880h \
      --fleet openb_node_list_gpu_node.csv`,
		Args: noArgs,
		RunE: r.run,
	}
	r.flags(c)
	return c
}

func (r *fleetSearch) flags(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&r.o.Config.Nodes, "nodes", 100, "number of nodes, at most")
	f.IntVar(&r.o.Config.GPUs, "gpus", 8, "GPUs of each node")
	f.IntVar(&r.o.Config.Memory, "memory", fleet.DefaultMemory, "memory of each GPU in `GiB`")
	f.DurationVar(&r.o.Config.Length, "duration", 24*time.Hour, "simulated time")
	f.Uint64Var(&r.o.Seed, "seed", 1, "random seed of the mix")
	f.StringVar(&r.mix, "mix", "mixed", "synthetic load: "+fleet.MixNames())
	f.Float64Var(&r.o.Load, "load", 0.75, "size of the mix, relative to all GPUs")
	f.StringVar(&r.trace, "trace", "", "read pods from the CSV `FILE` instead of a mix")
	f.StringVar(&r.writeTrace, "write-trace", "", "write the pods of the mix to `FILE` and end")
	f.StringSliceVar(&r.modes, "mode", []string{"all"}, "modes to compare: exclusive, time-slicing, MPS, XSched or all")
	f.StringVar(&r.score, "score", string(fleet.MostAllocated), "choice among nodes that fit: most, least (allocated) or first")
	f.BoolVar(&r.o.Config.Preempt, "preempt", false, "let services evict batch jobs, which kube-scheduler does not do for claims")
	f.BoolVar(&r.o.Config.Strict, "fifo", false, "let a pod that does not fit hold up those behind it")
	f.Float64Var(&r.o.Config.Cost, "cost", 1, "factor on XSched's switching costs: 0, 0.5, 1 or 1.5")
	f.BoolVar(&r.one, "fixed", false, "simulate this fleet instead of searching the smallest one")
	f.BoolVar(&r.sweep, "sweep", false, "also search at a quarter, half and three quarters of the load")
	f.StringVar(&r.html, "html", "", "write a page with table and charts to `FILE`")
	r.public.flags(f)
	jsonFlag(c, &r.asJSON)
}

func (r *fleetSearch) run(cmd *cobra.Command, _ []string) error {
	var err error
	if r.o.Config.Score, err = fleet.ParseScore(r.score); err != nil {
		return usageError{err}
	}
	if r.o.Sharings, err = sharings(r.modes); err != nil {
		return usageError{err}
	}
	if err := r.public.nodes(cmd, &r.o.Config); err != nil {
		return err
	}
	switch {
	case r.trace != "" && (cmd.Flags().Changed("mix") || r.sweep || cmd.Flags().Changed("load")):
		return usagef("--trace replaces --mix, --load and --sweep; use one or the other")
	case r.trace != "" && r.writeTrace != "" && r.public.from == "":
		return usagef("--trace has pods in the format of --write-trace already; add --from if it is another one")
	case r.trace == "" && r.public.from != "":
		return usagef("--from is the format of --trace; add --trace FILE")
	case r.trace != "":
		if err := r.load(); err != nil {
			return err
		}
	default:
		if r.o.Mix, err = fleet.FindMix(r.mix); err != nil {
			return usageError{err}
		}
		if r.sweep {
			r.o.Loads = []float64{0.25, 0.5, 0.75, 1}
		}
	}
	if r.writeTrace != "" {
		pods, err := r.o.Generate()
		if err != nil {
			return err
		}
		return r.app.writeOut(r.writeTrace, func(w io.Writer) error { return fleet.WriteTrace(w, pods) })
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	var done func()
	r.o.Fixed = r.one
	r.o.Progress, done = r.app.simProgress()
	start := time.Now()
	s, err := fleet.Compare(ctx, r.o)
	done()
	if err != nil {
		return interrupted(ctx, err)
	}
	if r.html != "" {
		if err := r.app.writeOut(r.html, s.WriteHTML); err != nil || r.html == "-" {
			return err
		}
	}
	if r.asJSON {
		return r.app.printJSON(s)
	}
	if err := s.WriteText(r.app.stdout); err != nil {
		return err
	}
	fmt.Fprintf(r.app.stderr, "%.1f s\n", time.Since(start).Seconds())
	return nil
}

// load reads the pods of a trace.
func (r *fleetSearch) load() (err error) {
	r.o.Source = "trace " + r.trace
	if r.public.from == "" {
		r.o.Pods, err = fleet.LoadTrace(r.trace)
		return err
	}
	r.public.Length = r.o.Config.Length
	t, err := r.public.read(r.trace)
	if err != nil {
		return err
	}
	fmt.Fprintln(r.app.stderr, t.Summary())
	r.o.Pods = t.Pods
	return nil
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
