// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/colorprofile"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"xsched/internal/screen"
	"xsched/internal/top"
)

func topCommand(a *app) *cobra.Command {
	var (
		once, asJSON bool
		o            = top.Options{UTF8: screen.UTF8(os.Getenv)}
	)
	c := &cobra.Command{
		Use:   "top",
		Short: "Show GPUs and programs live, and steer them",
		Long: `Show the GPUs and the managed programs, and update them every second.

  STATE    running, preempted (suspended by the policy), waiting (the hardware
           prefers another program's longer timeslice), idle, or held (by
           ` + "`xsched suspend`" + `)
  LEVEL    preemption level
  GPU      share of the GPU in the last second; LAST is its history
  P50 P99  request latency
  SLO      latency target, and whether enough requests met it
  PREEMPT  number of preemptions
  LOST     time lost to preemption

The last lines describe the selected program and name the keys: + and - change
its priority, s suspends and r resumes it, p switches the policy, o sorts, /
filters, space pauses, h shows help, q quits. The daemon checks the permissions.
Narrow terminals show fewer columns. NO_COLOR=1 disables colours. A terminal of
type dumb gets one screen after the other and no keys.

--once prints all programs and ends. --json prints one JSON object per interval
and line, or with --once a single one.`,
		Example: `  xsched top
  xsched top --once --sort p99
  xsched top --json --interval 10s | jq -c '.list.processes[] | [.pid, .gpu_share]'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showTop(cmd.Context(), a, o, once, asJSON)
		},
	}
	c.Flags().BoolVar(&once, "once", false, "print one screen with all programs")
	c.Flags().StringVar(&o.Sort, "sort", top.SortNames()[0], "sort order: "+strings.Join(top.SortNames(), ", "))
	c.Flags().StringVar(&o.Filter, "filter", "", "show only programs whose PID, user, state or command contains `TEXT`")
	_ = c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(top.SortNames(), cobra.ShellCompDirectiveNoFileComp))
	intervalFlag(c, &o.Interval)
	jsonFlag(c, &asJSON)
	return c
}

// showTop checks the options and shows the programs, on the whole terminal or as text.
func showTop(ctx context.Context, a *app, o top.Options, once, asJSON bool) error {
	if err := checkInterval(o.Interval); err != nil {
		return err
	}
	if !slices.Contains(top.SortNames(), o.Sort) {
		return usagef("--sort %q is unknown; use %s", o.Sort, strings.Join(top.SortNames(), ", "))
	}
	daemon := &top.Daemon{Connect: a.connect}
	defer daemon.Close()
	if once || asJSON || os.Getenv("TERM") == "dumb" {
		return topText(ctx, a, daemon, o, once, asJSON)
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stdout.Fd())) {
		return usagef("top needs a terminal as standard input and output; use --once or --json")
	}
	if _, err := daemon.Fetch(ctx); err != nil {
		return err // better than a screen without a daemon
	}
	return top.Run(ctx, daemon, o, os.Stdin, os.Stdout, os.Environ())
}

// topText prints screens or JSON without controlling the terminal.
func topText(ctx context.Context, a *app, daemon *top.Daemon, o top.Options, once, asJSON bool) error {
	w := colorprofile.NewWriter(a.stdout, os.Environ())
	model := top.New(ctx, daemon, o)
	draw := func(ctx context.Context, w io.Writer, width int) error {
		s, err := daemon.Fetch(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			return a.oneJSON(s, !once)
		}
		model.Take(s, nil)
		lines := model.Lines(width, 0)
		_, err = io.WriteString(w, screen.Styled(lines)+"\n")
		return err
	}
	if once {
		return draw(ctx, w, columns(a.stdout))
	}
	return a.watch(ctx, w, o.Interval, false, draw)
}

func statusCommand(a *app) *cobra.Command {
	var (
		asJSON, watch bool
		interval      time.Duration
	)
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the health of the daemon, its GPUs and programs on one screen",
		Long: `Show the daemon with the heartbeat of its engine and its configuration, policy
and mode, the GPUs, the number of programs by state, the program that suffers
most, problems and notes.

The exit code is 0 without problems and 1 with problems: no daemon answers, a
part of it is dead, the host has no driver or GPU that works, a program misses
its SLO, an operation on a program is stuck, or a program is not scheduled. Notes
do not change the exit code.`,
		Example: `  xsched status
  xsched status --json | jq '.problems'
  xsched status >/dev/null || notify-send "XSched has problems"`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkInterval(interval); err != nil {
				return err
			}
			daemon := &top.Daemon{Connect: a.connect}
			defer daemon.Close()
			if !watch {
				return showStatus(cmd.Context(), a, daemon, asJSON)
			}
			draw := func(ctx context.Context, w io.Writer, width int) error {
				status := readStatus(ctx, daemon)
				if asJSON {
					return a.oneJSON(status, true)
				}
				status.Write(w, width)
				return nil
			}
			return a.watch(cmd.Context(), a.stdout, interval, !asJSON && a.controllable(), draw)
		},
	}
	watchFlags(c, &watch, &interval)
	jsonFlag(c, &asJSON)
	return c
}

// showStatus prints the status once. Problems are an error.
func showStatus(ctx context.Context, a *app, daemon *top.Daemon, asJSON bool) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	status := readStatus(ctx, daemon)
	if err := a.show(status, nil, asJSON, func(w io.Writer) { status.Write(w, columns(a.stdout)) }); err != nil {
		return err
	}
	switch n := len(status.Problems); n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("1 problem; see the report above")
	default:
		return fmt.Errorf("%d problems; see the report above", n)
	}
}

// statusTimeout is when a daemon counts as unreachable.
const statusTimeout = 5 * time.Second

func readStatus(ctx context.Context, daemon *top.Daemon) top.Status {
	stats, err := daemon.Stats(ctx) // first: it answers when the engine hangs
	if err != nil {
		return top.Unreachable(err)
	}
	if dead := stats.Dead(); dead != "" {
		return top.Dead(dead)
	}
	s, err := daemon.Fetch(ctx)
	if err != nil {
		return top.Unreachable(err)
	}
	return top.Examine(&s, &stats, version)
}

// oneJSON prints a value as JSON, on one line if more of them follow.
func (a *app) oneJSON(value any, more bool) error {
	if !more {
		return a.printJSON(value)
	}
	if err := json.NewEncoder(escaping{a.stdout}).Encode(value); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}
