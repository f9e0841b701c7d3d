// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/bench/pair"
	"xsched/internal/virtual"
)

// colocation is the command pair.
type colocation struct {
	app                   *app
	o                     pair.Options
	asJSON, check, output bool
	rates                 []float64
	requests              []time.Duration
	remap                 time.Duration
}

func colocateCommand(a *app) *cobra.Command {
	p := &colocation{app: a}
	c := &cobra.Command{
		Use:   "pair [--online CMD --offline CMD | --virtual]",
		Short: "Run an online and an offline program on one GPU and report the cost to each",
		Long: `Start a private daemon, run the offline program alone, then the online program
next to it. Each request of the online program suspends the offline program's
hardware queues. They resume after the request or after --slice. Queues created
in the meantime are suspended too.

The report compares each target with the measurement: suspend below 5 ms, resume
below 10 ms, an online request below 50 ms, offline throughput loss below 5 %, and
no lost work. Programs that never ran at the same time are not reported.

A request is a busy period of the online program. A shell runs both commands. The
measurement ends with the online program or after --seconds. The offline program
then has --linger to finish.

Without commands, --virtual runs a built-in pair: --rate requests per second of
--request GPU time next to offline kernels back to back. With several rates or
requests, the result is a table of the offline loss for each combination. Gross
loss includes what the online program used, net loss does not. The limit is two
remaps of --remap per request: a GPU that remaps all queues to suspend one can't
do better.

With --attach, the offline program runs without the shim and is attached.`,
		Example: `  xsched pair --online ./serve --offline ./train
  xsched pair --virtual --platform ` + otherPlatform() + ` --online ./serve --offline ./train --out out/pair
  xsched pair --virtual --platform ` + otherPlatform() + ` --rate 10,50,100 --request 500us,5ms --seconds 10s
  xsched pair --attach --slice 100ms --online ./serve --offline ./train --json`,
		Args: noArgs,
		RunE: p.run,
	}
	p.flags(c)
	return c
}

func (p *colocation) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&p.o.Online, "online", "", "run `CMD` as the latency-critical program")
	f.StringVar(&p.o.Offline, "offline", "", "run `CMD` as the best-effort program")
	f.BoolVar(&p.o.Virtual, "virtual", false, "use the virtual GPU")
	f.StringVar(&p.o.Platform, "platform", virtual.Default().Name, "with --virtual: emulated `DRIVER`, "+platformNames())
	f.BoolVar(&p.o.Attach, "attach", false, "run the offline program without the shim and attach to it")
	f.DurationVar(&p.o.Slice, "slice", 0, "longest `TIME` that requests suspend the offline program (default the starvation bound, 2s)")
	f.DurationVar(&p.o.Hold, "hold", 0, "`TIME` that the offline program stays suspended after a request, for gaps within one (default 500us)")
	f.DurationVar(&p.o.Alone, "alone", 0, "`TIME` of the offline program alone (default 2s)")
	f.DurationVar(&p.o.Together, "seconds", 0, "longest `TIME` of both programs (default until the online program ends)")
	f.DurationVar(&p.o.Linger, "linger", 0, "`TIME` for each program to finish afterwards (default 10s)")
	f.StringVar(&p.o.Out, "out", "", "write pair.json and report.html to `DIR`")
	f.Float64SliceVar(&p.rates, "rate", []float64{10}, "built-in pair: requests per second, `N[,N]` for a table")
	f.DurationSliceVar(&p.requests, "request", []time.Duration{5 * time.Millisecond}, "built-in pair: GPU time of a request, `TIME[,TIME]` for a table")
	f.IntVar(&p.o.Load.Queues, "queues", 0, "built-in pair: `N` hardware queues of the offline programs (default those of one program)")
	f.DurationVar(&p.remap, "remap", 300*time.Microsecond, "built-in pair: assumed `TIME` of a remap, for the limit")
	f.StringArrayVar(&p.o.OfflineEnv, "offline-env", nil, "set `NAME=VALUE` in the offline program; may repeat")
	f.BoolVar(&p.check, "check", false, "exit with code 1 if a target is missed")
	f.BoolVar(&p.output, "output", false, "show the output of the programs on standard error")
	jsonFlag(c, &p.asJSON)
}

func (p *colocation) run(cmd *cobra.Command, _ []string) error {
	if err := checkPlatform(p.o.Platform); err != nil {
		return err
	}
	builtIn := p.o.Virtual && p.o.Online == "" && p.o.Offline == ""
	if !builtIn && (p.o.Online == "" || p.o.Offline == "") {
		return usagef("both commands are required; use --online CMD --offline CMD, or --virtual alone for the built-in pair")
	}
	for _, name := range []string{"rate", "request", "queues", "remap"} {
		if cmd.Flags().Changed(name) && !builtIn {
			return usagef("--%s applies to the built-in pair; use --virtual without commands", name)
		}
	}
	if cmd.Flags().Changed("platform") && !p.o.Virtual {
		return usagef("--platform applies to the virtual GPU; add --virtual")
	}
	if slices.Contains(p.rates, 0) || slices.Contains(p.requests, 0) {
		return usagef("--rate and --request can't be 0; leave them out for the defaults")
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	p.o.Progress = p.app.stderr
	if p.output {
		p.o.Output = p.app.stderr
	}
	if p.o.Hold < 0 {
		return usagef("--hold can't be negative; 0 means none")
	}
	if cmd.Flags().Changed("hold") && p.o.Hold == 0 {
		p.o.Hold = -1 // none; the zero value means the default
	}
	if len(p.rates)*len(p.requests) > 1 {
		sweep, err := pair.RunSweep(ctx, p.o, p.rates, p.requests, p.remap, p.app.stderr)
		if err != nil {
			return interrupted(ctx, err)
		}
		return showPair(p.app, sweep, p.asJSON, p.check)
	}
	if builtIn {
		p.o.Load.Rate, p.o.Load.Request = p.rates[0], p.requests[0]
	}
	report, err := pair.Run(ctx, p.o)
	if err != nil {
		return interrupted(ctx, err)
	}
	err = showPair(p.app, report, p.asJSON, p.check)
	if p.o.Out != "" && !p.asJSON {
		fmt.Fprintf(p.app.stdout, "\nwritten: %s/pair.json, %s/report.html\n", p.o.Out, p.o.Out)
	}
	return err
}

// pairResult is a report or a table of several.
type pairResult interface {
	WriteJSON(w io.Writer) error
	WriteTable(w io.Writer) error
	Met() bool
}

func showPair(a *app, r pairResult, asJSON, check bool) error {
	write := r.WriteTable
	if asJSON {
		write = r.WriteJSON
	}
	if err := write(a.stdout); err != nil {
		return err
	}
	if check && !r.Met() {
		return errors.New("a target was missed; see the report above")
	}
	if !r.Met() {
		a.warn("a target was missed; with --check that is an error")
	}
	return nil
}
