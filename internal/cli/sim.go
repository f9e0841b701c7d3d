// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"xsched/internal/record"
	"xsched/internal/sim"
)

func (a *app) simCommand() *cobra.Command {
	var (
		o              sim.Options
		asJSON         bool
		csv, svg, html string
		timeline       string
		recordTo       string
	)
	c := &cobra.Command{
		Use:   "sim SCENARIO.yaml",
		Short: "Simulate tenants under one policy or several",
		Long: `Runs the same engine and policies as the daemon on a virtual clock, against a
model of the GPU with the costs measured on an H200: timeslices, switches,
suspending and resuming. Nothing else runs: no daemon, no GPU, no programs. The
same scenario and seed give the same figures.

--compare names policies, each as POLICY or POLICY:MODE; "native" is the GPU
without XSched. "kept" is a tenant's throughput over what it has alone on a GPU.
docs/simulator.md describes scenarios and what the model leaves out.`,
		Example: `  xsched sim examples/scenarios/inference.yaml --compare native,FIFO,HPF
  xsched sim examples/scenarios/inference.yaml --compare native,HPF:suspend,HPF --svg inference.svg
  xsched sim examples/scenarios/inference.yaml --timeline inference.svg --draw 100ms
  xsched sim examples/scenarios/fleet.yaml --csv fleet.csv`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := sim.Load(args[0])
			if err != nil {
				return err
			}
			if timeline != "" && len(o.Policies) > 1 {
				return usagef("a timeline is of one policy; use --compare with one, or --svg for several")
			}
			if svg != "" || html != "" || timeline != "" {
				if o.Draw <= 0 {
					return usagef("the timeline's length must be above 0; use e.g. --draw 60ms")
				}
			} else {
				o.Draw = 0
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			endRecording := func() error { return nil }
			if recordTo != "" {
				log, err := record.Create(recordTo, record.Options{Header: s.RecordHeader(version, o), Wait: true})
				if err != nil {
					return err
				}
				o.Record, endRecording = log, log.Close
			}
			var done func()
			o.Progress, done = a.simProgress()
			start := time.Now()
			res, err := sim.Run(ctx, s, o)
			done()
			ended := endRecording()
			if err != nil {
				return interrupted(ctx, err)
			}
			if ended != nil {
				return ended
			}
			took := time.Since(start)
			for path, write := range map[string]func(io.Writer) error{csv: res.WriteCSV, svg: res.WriteSVG, html: res.WriteHTML, timeline: res.WriteTimeline} {
				if path != "" {
					if err := a.writeOut(path, write); err != nil {
						return err
					}
				}
			}
			if csv == "-" {
				return nil
			}
			if asJSON {
				return res.WriteJSON(a.stdout)
			}
			if err := res.WriteTable(a.stdout); err != nil {
				return err
			}
			fmt.Fprintf(a.stderr, "%d events in %.2f s: %.2f million a second\n", res.Events, took.Seconds(), float64(res.Events)/took.Seconds()/1e6)
			return nil
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Policies, "compare", nil, "policies to compare (default the scenario's)")
	f.Uint64Var(&o.Seed, "seed", 0, "of all that is random (default the scenario's)")
	f.IntVar(&o.Workers, "workers", 0, "goroutines that simulate (default one a core); the figures do not depend on it")
	f.StringVar(&csv, "csv", "", "file for one line a policy and tenant; - is standard output, instead of the table")
	f.StringVar(&svg, "svg", "", "file for one picture of the comparison")
	f.StringVar(&html, "html", "", "file for the table and the picture")
	f.StringVar(&timeline, "timeline", "", "file for a picture of who has the GPU, who waits and who is stopped, under one policy")
	f.StringVar(&recordTo, "record", "", "file for a recording, as a daemon would make it, for `xsched replay`; one policy, one GPU")
	f.DurationVar(&o.Draw, "draw", 60*time.Millisecond, "length of the timeline in the picture")
	jsonFlag(c, &asJSON)
	return c
}

// simProgress is a progress bar where somebody watches.
func (a *app) simProgress() (step func(float64), done func()) {
	f, ok := a.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions(1000, progressbar.OptionSetWriter(f), progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionSetDescription("simulating"), progressbar.OptionThrottle(100*time.Millisecond))
	return func(part float64) { _ = bar.Set(int(part * 1000)) }, func() { _ = bar.Finish() }
}

// writeOut writes a file, whole or not at all; - is standard output.
func (a *app) writeOut(path string, write func(io.Writer) error) error {
	if path == "-" {
		return write(a.stdout)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	err = write(f)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
