// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"xsched/internal/atomicfile"
	"xsched/internal/record"
	"xsched/internal/report"
	"xsched/internal/sim"
)

// simulation is the command sim.
type simulation struct {
	app            *app
	o              sim.Options
	asJSON         bool
	csv, svg, html string
	timeline       string
	recordTo       string
	cases          []string
}

func simCommand(a *app) *cobra.Command {
	r := &simulation{app: a}
	c := &cobra.Command{
		Use:   "sim SCENARIO.yaml",
		Short: "Simulate tenants under one or several policies",
		Long: `Run the daemon's engine and policies on a virtual clock against a model of the
GPU, with the timeslice, switch, suspend and resume costs measured on an H200. No
daemon, GPU or program is involved. Equal scenarios and seeds give equal results.

--compare takes policies as POLICY or POLICY:MODE; "native" is the GPU without
XSched. "kept" is a tenant's throughput relative to running alone.
docs/simulator.md describes scenarios and the limits of the model.`,
		Example: `  xsched sim examples/scenarios/inference.yaml --compare native,FIFO,HPF
  xsched sim examples/scenarios/inference.yaml --compare native,HPF:suspend,HPF --svg inference.svg
  xsched sim examples/scenarios/inference.yaml --timeline inference.svg --draw 100ms
  xsched sim examples/scenarios/serving.yaml --case bert-eager --compare native,HPF
  xsched sim examples/scenarios/fleet.yaml --csv fleet.csv`,
		Args: positional("SCENARIO.yaml"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: r.run,
	}
	r.flags(c)
	return c
}

func (r *simulation) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringSliceVar(&r.o.Policies, "compare", nil, "policies to compare (default: those of the scenario)")
	f.StringSliceVar(&r.cases, "case", nil, "`NAME`s of cases of the scenario (default: all)")
	f.Uint64Var(&r.o.Seed, "seed", 0, "random seed (default: that of the scenario)")
	f.IntVar(&r.o.Workers, "workers", 0, "number of goroutines (default: one per core); does not affect results")
	f.StringVar(&r.csv, "csv", "", "write one line per policy and tenant to `FILE`; - prints them instead of the table")
	f.StringVar(&r.svg, "svg", "", "write a chart of the comparison to `FILE`")
	f.StringVar(&r.html, "html", "", "write a page with table and chart to `FILE`")
	f.StringVar(&r.timeline, "timeline", "", "write a timeline of running, waiting and suspended tenants under one policy to `FILE`")
	f.StringVar(&r.recordTo, "record", "", "write a recording for xsched replay to `FILE`; one policy and one GPU only")
	f.DurationVar(&r.o.Draw, "draw", 60*time.Millisecond, "length of the drawn timeline")
	jsonFlag(c, &r.asJSON)
	c.AddCommand(simFleetCommand(r.app))
}

func (r *simulation) run(cmd *cobra.Command, args []string) error {
	all, err := r.scenarios(args[0])
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	endRecording := func() error { return nil }
	if r.recordTo != "" {
		log, err := record.Create(r.recordTo, record.Options{Header: all[0].RecordHeader(version, r.o), Wait: true})
		if err != nil {
			return err
		}
		r.o.Record, endRecording = log, log.Close
	}
	start, events := time.Now(), uint64(0)
	var results []*sim.Result
	for _, s := range all {
		var done func()
		r.o.Progress, done = r.app.simProgress()
		res, err := sim.Run(ctx, s, r.o)
		done()
		if err != nil {
			return errors.Join(interrupted(ctx, err), endRecording())
		}
		results = append(results, res)
		events += res.Events
	}
	took := time.Since(start)
	if err := endRecording(); err != nil {
		return err
	}
	if tables, err := r.write(results); err != nil || !tables {
		return err
	}
	fmt.Fprintf(r.app.stderr, "%d events in %.2f s (%.2f million/s)\n", events, took.Seconds(), float64(events)/took.Seconds()/1e6)
	return nil
}

// scenarios reads the cases to simulate, and checks that the flags suit them.
func (r *simulation) scenarios(file string) ([]*sim.Scenario, error) {
	s, err := sim.Load(file)
	if err != nil {
		return nil, err
	}
	if r.timeline != "" && len(r.o.Policies) > 1 {
		return nil, usagef("--timeline shows one policy; use --compare with one policy, or --svg")
	}
	drawn := r.svg != "" || r.html != "" || r.timeline != ""
	if drawn && r.o.Draw <= 0 {
		return nil, usagef("--draw must be above 0; use for example --draw 60ms")
	}
	if !drawn {
		r.o.Draw = 0
	}
	all, err := s.Split(r.cases...)
	if err == nil && len(all) > 1 && (drawn || r.csv != "" || r.recordTo != "") {
		err = usagef("%s has %d cases; choose one with --case, or print the tables", file, len(all))
	}
	return all, err
}

// write writes the files that the flags name, and prints the results as JSON or as tables.
func (r *simulation) write(results []*sim.Result) (tables bool, err error) {
	res := results[0]
	for path, write := range map[string]func(io.Writer) error{r.csv: res.WriteCSV, r.svg: res.WriteSVG, r.html: res.WriteHTML, r.timeline: res.WriteTimeline} {
		if path != "" {
			if err := r.app.writeOut(path, write); err != nil {
				return false, err
			}
		}
	}
	switch {
	case r.csv == "-":
		return false, nil
	case r.asJSON && len(results) > 1:
		return false, report.WriteJSON(r.app.stdout, results)
	case r.asJSON:
		return false, res.WriteJSON(r.app.stdout)
	}
	for i, res := range results {
		if i > 0 {
			fmt.Fprintln(r.app.stdout)
		}
		if err := res.WriteTable(r.app.stdout); err != nil {
			return true, err
		}
	}
	return true, nil
}

// simProgress shows a progress bar on a terminal.
func (a *app) simProgress() (step func(float64), done func()) {
	f, ok := a.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions(1000, progressbar.OptionSetWriter(f), progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionSetDescription("simulating"), progressbar.OptionThrottle(100*time.Millisecond))
	return func(part float64) { _ = bar.Set(int(part * 1000)) }, func() { _ = bar.Finish() }
}

// writeOut writes a file; - is standard output. A pipe or device is written, not replaced.
func (a *app) writeOut(path string, write func(io.Writer) error) error {
	if path == "-" {
		return write(a.stdout)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("write file: %w", err)
		}
		return errors.Join(write(file), file.Close())
	}
	return atomicfile.Write(path, 0o644, write)
}
