// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

func (a *app) listCommand() *cobra.Command {
	var asJSON, devices, stats bool
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Show the programs under the daemon",
		Long: `One line for each context of a program on a GPU.

  SHARE   of the GPU in percent, where one was given
  LEVEL   how it is stopped when it must be: Lv1 holds its launches, Lv2 lets its
          slice end, Lv3 stops it in mid-kernel
  STATE   busy: it has work for the GPU
  SCHED   run, suspended (by the policy) or held (by ` + "`xsched suspend`" + `)
  SLICE   its hardware timeslice; in brackets: the driver's own`,
		Example: `  xsched list
  xsched list --json | jq '.processes[].pid'
  xsched list --devices
  xsched list --stats`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(client *client.Client) error {
				switch {
				case devices:
					reply, err := client.Devices(cmd.Context())
					return a.show(reply, err, asJSON, func(w io.Writer) { writeDevices(w, reply) })
				case stats:
					reply, err := client.Stats(cmd.Context())
					return a.show(reply, err, asJSON, func(w io.Writer) { writeStats(w, reply) })
				}
				reply, err := client.List(cmd.Context())
				return a.show(reply, err, asJSON, func(w io.Writer) { writeList(w, reply, columns(a.stdout)) })
			})
		},
	}
	c.Flags().BoolVar(&devices, "devices", false, "show the GPUs instead")
	c.Flags().BoolVar(&stats, "stats", false, "show the daemon's own figures instead")
	c.MarkFlagsMutuallyExclusive("devices", "stats")
	jsonFlag(c, &asJSON)
	return c
}

// show prints a reply as JSON or in words.
func (a *app) show(reply any, err error, asJSON bool, words func(io.Writer)) error {
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(reply)
	}
	words(a.stdout)
	return nil
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 4, 2, ' ', 0) }

// writeList prints the table; width 0 cuts nothing.
func writeList(w io.Writer, list control.List, width int) {
	var text strings.Builder
	table := newTable(&text)
	fmt.Fprintln(table, "PID\tDEVICE\tPRIO\tSHARE\tLEVEL\tSTATE\tSCHED\tSLICE\tLAUNCHES\tCOMMAND")
	for _, p := range list.Processes {
		command := printable(p.Command)
		if p.Attached {
			command += " (attached)"
		}
		if len(p.Queues) == 0 {
			fmt.Fprintf(table, "%d\t-\t%d\t%s\t%s\t-\t%s\t-\t%d\t%s\n", p.PID, p.Priority, shareText(p.Utilization), levelText(p.WantLevel), heldText(p.Held), p.Counters.Launches, command)
		}
		for i, q := range p.Queues {
			launches := fmt.Sprint(p.Counters.Launches)
			if i > 0 {
				launches = "\"" // counted for the process as a whole
			}
			fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.PID, q.Device, p.Priority, shareText(p.Utilization), levelText(q.Level)+routeText(q.Route),
				busyText(q.Busy), schedText(q.State, p.Held), sliceText(q), launches, command)
		}
	}
	_ = table.Flush() // into memory
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(w, cut(strings.TrimRight(line, "\n "), width))
	}
	for _, p := range list.Processes {
		if p.PriorityReason != "" {
			fmt.Fprintf(w, "note: %d: %s\n", p.PID, printable(p.PriorityReason))
		}
		for _, q := range p.Queues {
			if q.LevelReason != "" {
				fmt.Fprintf(w, "note: %d: Lv%d on %s: %s\n", p.PID, q.Level, q.Device, printable(q.LevelReason))
			}
		}
		writeHints(w, &p)
	}
	if len(list.Processes) == 0 {
		fmt.Fprintln(w, "no programs; start one with `xsched run -- CMD`")
	}
}

// writeHints prints what the table has no column for.
func writeHints(w io.Writer, p *control.Process) {
	rest := p.Hints
	rest.Priority, rest.Level, rest.Utilization = 0, 0, 0
	if text := hintsText(&rest); text != "" {
		fmt.Fprintf(w, "hints: %d: %s\n", p.PID, text)
	}
	for _, q := range p.Queues {
		if q.Hints != p.Hints {
			fmt.Fprintf(w, "hints: %d, queue %d: %s\n", p.PID, q.Index, hintsText(&q.Hints, "priority"))
		}
	}
}

func writeDevices(w io.Writer, reply control.Devices) {
	table := newTable(w)
	fmt.Fprintln(table, "DEVICE\tNAME\tDRIVER\tMAX LEVEL\tTIMESLICES\tPROGRAMS\tNOTE")
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
			note = strings.TrimPrefix(note+"; MIG: its instances are scheduled as one device", "; ")
		}
		if d.Others > 0 {
			note = strings.TrimPrefix(fmt.Sprintf("%s; %d programs that are not managed", note, d.Others), "; ")
		}
		name := d.Name
		if name == "" {
			name = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", d.ID, name, d.Driver, levelText(d.MaxLevel), yesNo(d.Slices), d.Processes, note)
	}
	_ = table.Flush()
	if len(reply.Devices) == 0 {
		fmt.Fprintln(w, "no GPU seen yet; the daemon learns of one from the first program that uses it")
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
	line("programs", "%d now, %d in all, %d contexts", s.Sessions, s.SessionsTotal, s.Queues)
	line("engine", "%d wakes, %d doorbells, %d decisions", s.Wakes, s.Doorbells, s.Decisions)
	line("decided", "%d preemptions, %d yields to a longer slice, %d turns by the starvation bound", s.Preemptions, s.Yields, s.Grants)
	times("busy to decision", s.BusyToDecision)
	times("decision alone", s.Decision)
	times("heartbeat late by", s.HeartbeatLate)
	line("operations", "%d suspends, %d resumes, %d timeslices, %d gate holds", s.Suspends, s.Resumes, s.TimesliceSets, s.GateHolds)
	times("suspend", s.SuspendTime)
	times("resume", s.ResumeTime)
	for level, h := range s.PreemptTime {
		if h.Count > 0 {
			times(fmt.Sprintf("decision to stopped, Lv%d", level), h)
		}
	}
	line("undone", "%d suspensions whose lease ran out", s.Undone)
	line("device errors", "%d", s.DeviceErrors)
	for _, t := range s.Targets {
		if t.StuckForMS > 0 {
			line("stuck", "pid %d on %s for %d ms", t.PID, t.Device, t.StuckForMS)
		}
	}
	for reason, n := range s.Refused {
		line("refused", "%d: %s", n, printable(reason))
	}
	_ = table.Flush()
}

func levelText(level int) string {
	if level == 0 {
		return "auto"
	}
	return fmt.Sprintf("Lv%d", level)
}

// routeText names the way a level is reached where a GPU has more than one.
func routeText(route string) string {
	switch route {
	case "", control.RouteGate, control.RouteChannels:
		return ""
	}
	return " " + route
}

func busyText(busy bool) string {
	if busy {
		return "busy"
	}
	return "idle"
}

func heldText(held bool) string {
	if held {
		return "held"
	}
	return "run"
}

// schedText says what the scheduler does with a queue; whether it is idle is
// another column.
func schedText(state string, held bool) string {
	if state == "suspended" {
		return state
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

// printable keeps what another program chose, such as its name, from steering
// the terminal or breaking the table.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// cut shortens a line to the terminal's width.
func cut(line string, width int) string {
	runes := []rune(line)
	if width <= 0 || len(runes) <= width {
		return line
	}
	return string(runes[:width-1]) + "…"
}

// columns is the width of the terminal, or 0 if w is none.
func columns(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
