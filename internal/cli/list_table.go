// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"xsched/internal/control"
	"xsched/internal/screen"
	"xsched/internal/top"
)

// narrow is the width of a terminal below which the table has one line per program, and fewer columns.
const narrow = 140

// roomy is the width from which that table has room for the error budget.
const roomy = 120

// writeList prints the table; width 0 means unlimited.
func writeList(w io.Writer, list control.List, width int) {
	fmt.Fprintf(w, "policy %s, mode %s\n", list.Policy, control.ModeText(list.Mode, list.ModeLevel))
	writeSettings(w, list.Devices)
	list.Processes = slices.Clone(list.Processes)
	slices.SortStableFunc(list.Processes, func(a, b control.Process) int { return cmp.Compare(b.Priority, a.Priority) })
	var text strings.Builder
	table := newTable(&text)
	if width > 0 && width < narrow {
		writeNarrow(table, list.Processes, width >= roomy)
	} else {
		writeWide(table, list.Processes)
	}
	_ = table.Flush() // into memory
	for i, line := range slices.Collect(strings.Lines(text.String())) {
		line = strings.TrimRight(line, "\n ")
		if i > 0 && width > 0 && width < narrow {
			line = withName(line, &list.Processes[i-1], width)
		}
		fmt.Fprintln(w, cut(line, width))
	}
	for _, p := range list.Processes {
		if p.Impaired != "" {
			fmt.Fprintf(w, "note: %d: %s\n", p.PID, p.Impaired)
		}
		if p.PriorityReason != "" {
			fmt.Fprintf(w, "note: %d: %s\n", p.PID, printable(p.PriorityReason))
		}
		for _, q := range p.Queues {
			if q.LevelReason != "" {
				fmt.Fprintf(w, "note: %d: Lv%d on %s: %s\n", p.PID, q.Level, q.Device, printable(q.LevelReason))
			}
		}
		writeHints(w, &p)
		writeMemory(w, &p)
		for _, g := range p.Protection {
			on := ""
			if len(p.Protection) > 1 {
				on = " on " + g.Device
			}
			fmt.Fprintln(w, cut(fmt.Sprintf("protection: %d%s: %s", p.PID, on, top.Protection(&g)), width))
			if s := top.Strategy(&g.Submission); s != "" {
				fmt.Fprintln(w, cut(fmt.Sprintf("strategy: %d%s: %s", p.PID, on, s), width))
			}
		}
	}
	if len(list.Processes) == 0 {
		fmt.Fprintln(w, "no programs; start one with `xsched run -- CMD`")
	}
}

// withName replaces a command that does not fit by the name that tells the program apart.
func withName(line string, p *control.Process, width int) string {
	if rest, ok := strings.CutSuffix(line, commandText(p)); ok && screen.Width(line) > width && p.Command != "" && p.Name != "" {
		return rest + printable(p.Name)
	}
	return line
}

// writeWide prints one line per queue. The figures of a whole process are on its first line.
func writeWide(table io.Writer, processes []control.Process) {
	owner := ownerColumns(processes)
	fmt.Fprintln(table, "PID\t"+owner(nil)+"\tDEVICE\tPRIO\tSHARE\tLEVEL\tSTATE\tSCHED\tSLICE\tLAUNCHES\tGPU\tP50\tP99\tWAIT\tSLO\tPREEMPTED\tCOMMAND")
	for _, p := range processes {
		figures := fmt.Sprintf("%d\t%s\t%s\t%s", p.Counters.Launches, percent(p.GPUShare), latencyText(p.Latency), sloText(p.SLO, true))
		figures += "\t" + preemptedText(&p)
		if len(p.Queues) == 0 {
			fmt.Fprintf(table, "%d\t%s\t-\t%d\t%s\t%s\t-\t%s\t-\t%s\t%s\n", p.PID, owner(&p), p.Priority, shareText(p.Utilization), top.Level(p.WantLevel), heldText(p.Held), figures, commandText(&p))
		}
		for i, q := range p.Queues {
			if i > 0 {
				figures = strings.TrimSuffix(strings.Repeat("\"\t", 7), "\t")
			}
			fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.PID, owner(&p), q.Device, p.Priority, shareText(p.Utilization), top.Level(q.Level)+routeText(q.Route),
				busyText(&q), schedText(q.State, p.Held), sliceText(q), figures, commandText(&p))
		}
	}
}

// writeNarrow prints one line per process.
func writeNarrow(table io.Writer, processes []control.Process, budget bool) {
	owner := ownerColumns(processes)
	fmt.Fprintln(table, "PID\t"+owner(nil)+"\tPRIO\tSTATE\tGPU\tP50\tP99\tWAIT\tSLO\tCOMMAND")
	for _, p := range processes {
		fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", p.PID, owner(&p), p.Priority, p.State, percent(p.GPUShare), latencyText(p.Latency), sloText(p.SLO, budget), commandText(&p))
	}
}

// ownerColumns returns the user of a program, and its pod if any program has one; nil: the headings.
func ownerColumns(processes []control.Process) func(*control.Process) string {
	pods := slices.ContainsFunc(processes, func(p control.Process) bool { return p.Pod != "" })
	return func(p *control.Process) string {
		user, pod := "USER", "POD"
		if p != nil {
			user, pod = top.User(p), cmp.Or(printable(control.PodName(p.Namespace, p.Pod, p.PodContainer)), "-")
		}
		if !pods {
			return user
		}
		return user + "\t" + pod
	}
}

func commandText(p *control.Process) string {
	command := printable(p.Command)
	if command == "" {
		command = "-" // of another user
	}
	if p.Attached {
		command += " (attached)"
	}
	return command
}

// latencyText has three columns: the P50 and the P99 of the recent requests, and the P99 of their waits,
// where the requests are known.
func latencyText(l *control.Latency) string {
	if !l.Certain() {
		return "-\t-\t-"
	}
	return durationText(l.Total.P50US) + "\t" + durationText(l.Total.P99US) + "\t" + durationText(l.Wait.P99US)
}

// durationText writes microseconds with three digits.
func durationText(us float64) string {
	d := time.Duration(us * 1e3)
	step := time.Duration(1)
	for d/step >= 1000 {
		step *= 10
	}
	return d.Round(step).String()
}

// sloText is the share of recent requests that met the target, with a mark if that is too small, and the
// part of the error budget that is left.
func sloText(s *control.SLO, budget bool) string {
	if s == nil || s.Met+s.Missed == 0 && s.Attainment == 1 {
		return "-"
	}
	text := fmt.Sprintf("%.1f%%", 100*s.Attainment)
	if s.BudgetLeft < 0 {
		text += "!"
	}
	if budget {
		text += fmt.Sprintf(" (%s left)", percent(max(0, s.BudgetLeft)))
	}
	return text
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

// preemptedText has the number of preemptions and the time that they took.
func preemptedText(p *control.Process) string {
	if p.Preemptions == 0 {
		return "-"
	}
	return fmt.Sprintf("%d, %s", p.Preemptions, durationText(float64(p.LostNS)/1e3))
}

// writeHints prints the hints that have no column.
func writeHints(w io.Writer, p *control.Process) {
	rest := p.Hints
	rest.Priority, rest.Level, rest.Utilization = 0, 0, 0
	if len(p.Memory) > 0 {
		rest.Memory = 0 // in the lines about memory
	}
	if text := hintsText(&rest); text != "" {
		fmt.Fprintf(w, "hints: %d: %s\n", p.PID, text)
	}
	for _, q := range p.Queues {
		if q.Hints != p.Hints {
			fmt.Fprintf(w, "hints: %d, queue %d: %s\n", p.PID, q.Index, hintsText(&q.Hints, "priority"))
		}
	}
}

// leastMemory is the memory that is worth a line: frameworks have more, and small programs have no need of one.
const leastMemory = 1 << 20

// writeMemory prints what a program has allocated on each GPU, its quota, and what can leave or has left.
func writeMemory(w io.Writer, p *control.Process) {
	for _, m := range p.Memory {
		if m.UsedBytes < leastMemory && m.QuotaBytes == 0 {
			continue
		}
		fmt.Fprintf(w, "memory: %d on %s: %s\n", p.PID, m.Device, printable(m.Text()))
	}
}
