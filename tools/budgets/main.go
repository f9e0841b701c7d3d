// SPDX-License-Identifier: Apache-2.0

// Budgets measures what XSched may cost and fails if it costs more:
//
//   - a hook on the busy path, against a driver that does nothing, with and
//     without the shim in turns;
//   - a decision of the engine with 1,000 queues;
//   - the time from an application's idle->busy change to the daemon's decision
//     about it, with another process spinning on one core.
//
// It runs in the repository after `make build null`; `make bench` does both.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// budget is one figure and its limit.
type budget struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
	Unit  string  `json:"unit"`
	Note  string  `json:"note"`
}

func (b budget) kept() bool { return b.Value <= b.Limit }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "budgets:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("budgets", flag.ContinueOnError)
	launches := flags.Int("launches", 10_000_000, "launches of each loop")
	seconds := flags.Int("seconds", 15, "length of the busy-to-decision measurement")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var all []budget
	for _, measure := range []func() ([]budget, error){
		func() ([]budget, error) { return hookCost(ctx, *launches) },
		func() ([]budget, error) { return decisionCost(ctx) },
		func() ([]budget, error) { return busyToDecision(ctx, *seconds) },
	} {
		figures, err := measure()
		if err != nil {
			return err
		}
		all = append(all, figures...)
	}
	missed := 0
	fmt.Fprintf(out, "%-34s %12s %12s   %s\n", "figure", "measured", "budget", "")
	for _, b := range all {
		verdict := "ok"
		if !b.kept() {
			verdict = "MISSED"
			missed++
		}
		fmt.Fprintf(out, "%-34s %9.2f %s %9.0f %s   %s (%s)\n", b.Name, b.Value, b.Unit, b.Limit, b.Unit, verdict, b.Note)
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d budgets missed", missed, len(all))
	}
	return nil
}
