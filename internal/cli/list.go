// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/screen"
	"xsched/internal/top"
)

// listing is the command list.
type listing struct {
	app                           *app
	asJSON, devices, stats, watch bool
	interval                      time.Duration
}

func listCommand(a *app) *cobra.Command {
	l := &listing{app: a}
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List managed programs",
		Long: `List the managed programs, one line per program and GPU. A terminal with less
than 140 columns gets one line per program, and fewer columns. The programs with
the highest priority come first, and among equals those that joined first.

  SHARE      share of the GPU in percent, if set
  LEVEL      preemption level: Lv1 holds launches, Lv2 waits for the end of the
             timeslice, Lv3 stops in mid-kernel
  STATE      busy while the program has GPU work, copies if it only copies, else
             idle; per program: running, preempted, waiting (for another's longer
             timeslice), idle or held
  SCHED      run, yields (the hardware prefers another program's longer
             timeslice), suspended (by the policy) or held (by ` + "`xsched suspend`" + `)
  SLICE      hardware timeslice; in parentheses the driver's default
  GPU        share of the last second, summed over GPUs
  P50, P99   request latency of the last 30 to 60 seconds: of marked requests, or
             else of busy periods
  WAIT       P99 of the part in which others kept the request from running
  SLO        recent requests that met the latency target, "!" if too few did,
             and the part of the error budget that is left
  PREEMPTED  preemptions and the time lost to them

A line "protection" follows for each program that runs before others: by how
much that shortens its P99 request (modelled, or measured), and which share of
the GPU's time others lose for it at most. A line "strategy" says how lower
programs share the GPU with it, and why.`,
		Example: `  xsched list
  xsched list --json | jq '.processes[].pid'
  xsched list --watch
  xsched list --devices
  xsched list --stats`,
		Args: noArgs,
		RunE: l.run,
	}
	l.flags(c)
	return c
}

func (l *listing) flags(c *cobra.Command) {
	c.Flags().BoolVar(&l.devices, "devices", false, "list GPUs instead of programs")
	c.Flags().BoolVar(&l.stats, "stats", false, "show statistics of the daemon")
	watchFlags(c, &l.watch, &l.interval)
	jsonFlag(c, &l.asJSON)
}

func (l *listing) run(cmd *cobra.Command, _ []string) error {
	if l.devices && l.stats {
		return usagef("--devices and --stats exclude each other; use one")
	}
	draw := func(ctx context.Context, w io.Writer, width int) error {
		return l.app.withClient(ctx, func(daemon *client.Client) error {
			reply, text, err := readList(ctx, daemon, l.devices, l.stats, width)
			switch {
			case err != nil:
				return err
			case l.asJSON:
				return l.app.oneJSON(reply, l.watch)
			}
			text(w)
			return nil
		})
	}
	if !l.watch {
		return draw(cmd.Context(), l.app.stdout, columns(l.app.stdout))
	}
	if err := checkInterval(l.interval); err != nil {
		return err
	}
	return l.app.watch(cmd.Context(), l.app.stdout, l.interval, !l.asJSON && l.app.controllable(), draw)
}

// readList reads what list shows, and returns it as a value and as text.
func readList(ctx context.Context, daemon *client.Client, devices, stats bool, width int) (any, func(io.Writer), error) {
	switch {
	case devices:
		reply, err := daemon.Devices(ctx)
		return reply, func(w io.Writer) { writeDevices(w, reply) }, err
	case stats:
		reply, err := daemon.Stats(ctx)
		return reply, func(w io.Writer) { writeStats(w, reply) }, err
	}
	reply, err := daemon.List(ctx)
	return reply, func(w io.Writer) { writeList(w, reply, width) }, err
}

// show prints a reply as JSON or as text.
func (a *app) show(reply any, err error, asJSON bool, text func(io.Writer)) error {
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(reply)
	}
	text(a.stdout)
	return nil
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 4, 2, ' ', 0) }

func writeDevices(w io.Writer, reply control.Devices) {
	table := newTable(w)
	fmt.Fprintln(table, "DEVICE\tNAME\tDRIVER\tMAX LEVEL\tTIMESLICES\tPOLICY\tMODE\tPROGRAMS\tNOTE")
	for _, d := range reply.Devices {
		note := d.LevelReason
		if d.Virtual {
			note = strings.TrimPrefix("virtual GPU; "+note, "; ")
			note = strings.TrimSuffix(note, "; ")
		}
		if d.ComputeMode != "" && d.ComputeMode != "default" {
			note = strings.TrimPrefix(note+"; compute mode "+d.ComputeMode, "; ")
		}
		if d.MIG {
			note = strings.TrimPrefix(note+"; MIG: instances are scheduled as one device", "; ")
		}
		if d.Others > 0 {
			note = strings.TrimPrefix(fmt.Sprintf("%s; %d unmanaged", note, d.Others), "; ")
		}
		name := d.Name
		if name == "" {
			name = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", d.ID, name, d.Driver, top.Level(d.MaxLevel), yesNo(d.Slices), d.Policy, control.ModeText(d.Mode, d.ModeLevel), d.Processes, note)
	}
	_ = table.Flush()
	for _, p := range reply.Problems {
		fmt.Fprintf(w, "problem: %s\n", printable(strings.TrimSuffix(p.Cause+"; "+p.Remedy, "; ")))
	}
	if len(reply.Devices)+len(reply.Problems) == 0 {
		fmt.Fprintln(w, "no GPU known yet; the daemon discovers GPUs when a program uses them")
	}
}

func writeStats(w io.Writer, s control.Stats) {
	table := newTable(w)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	times := func(name string, h control.Histogram) {
		if h.Count == 0 {
			line(name, "-")
			return
		}
		line(name, "P50 %.1f us, P99 %.1f us, max %.1f us (%d)", h.P50US, h.P99US, h.MaxUS, h.Count)
	}
	line("uptime", "%s", time.Duration(s.UptimeNS).Round(time.Second))
	line("engine thread", "%s", s.Scheduling)
	line("programs", "%d connected, %d in total, %d contexts", s.Sessions, s.SessionsTotal, s.Queues)
	line("engine", "%d wakes, %d doorbells, %d decisions", s.Wakes, s.Doorbells, s.Decisions)
	line("preemption", "%d preemptions, %d yields to a longer timeslice, %d starvation grants", s.Preemptions, s.Yields, s.Grants)
	times("busy to decision", s.BusyToDecision)
	times("decision", s.Decision)
	times("heartbeat delay", s.HeartbeatLate)
	line("operations", "%d suspends, %d resumes, %d timeslices, %d gate holds", s.Suspends, s.Resumes, s.TimesliceSets, s.GateHolds)
	line("shared operations", "%d carried out by another program's call, %d repeated alone", s.Shared, s.Split)
	times("suspend", s.SuspendTime)
	times("resume", s.ResumeTime)
	for level, h := range s.PreemptTime {
		if h.Count > 0 {
			times(fmt.Sprintf("preemption latency, Lv%d", level), h)
		}
	}
	line("undone", "%d, their lease had expired", s.Undone)
	line("turned off", "%d times for a program whose resume failed", s.TurnedOff)
	line("device errors", "%d", s.DeviceErrors)
	line("limits", "%d queues merged and %d refused, %d doorbells deferred, %d requests refused", s.FoldedQueues, s.QueuesRefused, s.Throttled, s.RequestsRefused)
	line("log", "%d lines suppressed, %d dropped", s.LogSuppressed, s.LogDropped)
	for _, t := range s.Targets {
		if t.Off != "" {
			line("off", "PID %d on %s: %s", t.PID, t.Device, t.Off)
		}
		if t.StuckForMS > 0 {
			line("stuck", "PID %d on %s for %d ms", t.PID, t.Device, t.StuckForMS)
		}
	}
	for reason, n := range s.Refused {
		line("refused", "%d: %s", n, printable(reason))
	}
	_ = table.Flush()
}

// routeText names the mechanism where a GPU has several.
func routeText(route string) string {
	switch route {
	case "", control.RouteGate, control.RouteChannels:
		return ""
	}
	return " " + route
}

func busyText(q *control.Queue) string {
	switch {
	case !q.Busy:
		return "idle"
	case q.CopiesOnly:
		return "copies"
	case q.Batched:
		return "batched"
	}
	return "busy"
}

func heldText(held bool) string {
	if held {
		return "held"
	}
	return "run"
}

// schedText is the scheduler's state of a queue.
func schedText(state string, held bool) string {
	switch state {
	case "suspended":
		return state
	case "yielding":
		return "yields"
	}
	return heldText(held || state == "held")
}

func sliceText(q control.Queue) string {
	switch {
	case q.SliceUS > 0:
		return microseconds(q.SliceUS)
	case q.OwnSliceUS > 0:
		return "(" + microseconds(q.OwnSliceUS) + ")"
	}
	return "-"
}

func microseconds(us int64) string { return (time.Duration(us) * time.Microsecond).String() }

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// printable makes foreign text safe for one line of a terminal.
func printable(s string) string { return screen.Clean(s) }

// cut shortens a line to the terminal's width.
func cut(line string, width int) string { return screen.Cut(line, width) }
