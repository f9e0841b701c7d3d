// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/control"
	"xsched/internal/screen"
)

// sparkWidth is the number of columns, and so of samples, of the history of a GPU share.
const sparkWidth = 8

// row is a tenant with its past.
type row struct {
	*control.Process
	shares []float64
	node   string // in a fleet
}

// column is one column of the table. Columns are dropped by rank, the largest first, until the
// others fit.
type column struct {
	title string
	width int
	rank  int
	right bool
	text  func(r row, utf8 bool) (string, screen.Style)
}

// minCommand is the width that the last column, the command, keeps.
const minCommand = 10

var columns = []column{
	{"PID", 5, 0, true, func(r row, _ bool) (string, screen.Style) { return fmt.Sprint(r.PID), screen.Plain }},
	{"USER", 8, 7, false, func(r row, _ bool) (string, screen.Style) { return User(r.Process), screen.Plain }},
	{"PRIO", 4, 4, true, func(r row, _ bool) (string, screen.Style) { return fmt.Sprint(r.Priority), screen.Plain }},
	{"STATE", 9, 1, false, func(r row, _ bool) (string, screen.Style) { return cmp.Or(r.State, "-"), stateStyle(r.State) }},
	{"LEVEL", 5, 11, false, func(r row, _ bool) (string, screen.Style) { return Level(lowestLevel(r.Process)), screen.Plain }},
	{"GPU", 4, 2, true, func(r row, _ bool) (string, screen.Style) { return percent(r.GPUShare), screen.Plain }},
	{"LAST", sparkWidth, 6, false, func(r row, utf8 bool) (string, screen.Style) {
		return screen.Spark(r.shares, sparkWidth, utf8), screen.Accent
	}},
	{"P50", 5, 9, true, func(r row, _ bool) (string, screen.Style) { return latency(r.Process, false), screen.Plain }},
	{"P99", 5, 3, true, func(r row, _ bool) (string, screen.Style) { return latency(r.Process, true), screen.Plain }},
	{"SLO", 10, 5, false, func(r row, _ bool) (string, screen.Style) { return SLO(r.SLO) }},
	{"PREEMPT", 7, 10, true, func(r row, _ bool) (string, screen.Style) { return number(r.Preemptions), screen.Plain }},
	{"LOST", 5, 8, true, func(r row, _ bool) (string, screen.Style) { return duration(float64(r.LostNS) / 1e3), screen.Plain }},
}

// fitting returns the columns for a width; width 0 means unlimited.
func fitting(columns []column, width, pidWidth int, history bool) []column {
	var out []column
	used := minCommand
	for rank := range columns {
		i := slices.IndexFunc(columns, func(c column) bool { return c.rank == rank })
		c := columns[i]
		if c.title == "PID" {
			c.width = max(c.width, pidWidth)
		}
		if c.title == "LAST" && !history {
			continue
		}
		if used += c.width + 1; width > 0 && used > width && rank > 0 {
			break
		}
		out = append(out, c)
	}
	place := func(c column) int {
		return slices.IndexFunc(columns, func(o column) bool { return o.title == c.title })
	}
	slices.SortStableFunc(out, func(a, b column) int { return place(a) - place(b) })
	return out
}

func stateStyle(state string) screen.Style {
	switch state {
	case control.StateRunning:
		return screen.Good
	case control.StatePreempted, control.StateWaiting, control.StateAway:
		return screen.Warn
	case control.StateHeld:
		return screen.Bad
	}
	return screen.Faint
}

// User returns the owner of a process: a user of this machine, or UID@CONTAINER. Older daemons tell
// the UID only.
func User(p *control.Process) string {
	name := screen.Clean(cmp.Or(p.User, strconv.Itoa(p.UID)))
	if p.Container == "" {
		return name
	}
	container := strings.TrimSuffix(path.Base(p.Container), ".scope")
	const id = 64 // digits of a container's id; 12 tell it apart
	if len(container) >= id {
		container = container[:len(container)-id+12]
	}
	return name + "@" + screen.Clean(container)
}

// Command returns the command of a process for one line.
func Command(p *control.Process) string {
	command := screen.Clean(p.Command)
	if command == "" {
		command = "-" // of another user
	}
	if p.Attached {
		command += " (attached)"
	}
	return command
}

// shortCommand omits the folder of the program, because the table is narrow.
func shortCommand(p *control.Process) string {
	command := Command(p)
	program, arguments, _ := strings.Cut(command, " ")
	if strings.HasSuffix(program, "/") {
		return command
	}
	return strings.TrimSpace(path.Base(program) + " " + arguments)
}

// Level names a preemption level.
func Level(level int) string {
	if level == 0 {
		return "auto"
	}
	return fmt.Sprintf("Lv%d", level)
}

// lowestLevel is the level at which a process can certainly be preempted.
func lowestLevel(p *control.Process) int {
	level := p.WantLevel
	for i, q := range p.Queues {
		if i == 0 || q.Level < level {
			level = q.Level
		}
	}
	return level
}

// SLO tells the target and whether it is met.
func SLO(s *control.SLO) (string, screen.Style) {
	switch {
	case s == nil:
		return "-", screen.Faint
	case Missed(s):
		return duration(float64(s.TargetUS)) + " miss", screen.Bad
	}
	return duration(float64(s.TargetUS)) + " met", screen.Good
}

// Missed reports whether fewer requests than the objective demands met the target.
func Missed(s *control.SLO) bool { return s.Misses() }

func latency(p *control.Process, tail bool) string {
	switch {
	case !p.Latency.Certain():
		return "-"
	case tail:
		return duration(p.Latency.Total.P99US)
	}
	return duration(p.Latency.Total.P50US)
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

// duration formats microseconds in at most five characters.
func duration(us float64) string {
	for _, unit := range []struct {
		name string
		size float64
		most float64 // of this unit
	}{{"us", 1, 999.5}, {"ms", 1e3, 999.5}, {"s", 1e6, 99.5}, {"m", 60e6, 99.5}, {"h", 3600e6, 99.5}, {"d", 86400e6, 1e4}} {
		v := us / unit.size
		switch {
		case us <= 0:
			return "0"
		case v >= unit.most:
			continue
		case v < 9.95 && unit.name != "us":
			return fmt.Sprintf("%.1f%s", v, unit.name)
		}
		return fmt.Sprintf("%.0f%s", v, unit.name)
	}
	return ">27y"
}

// number formats a count in at most five characters.
func number(n uint64) string {
	v := float64(n)
	for _, unit := range []string{"", "k", "M", "G", "T", "P"} {
		switch {
		case v < 9999.5 && unit == "" || v < 999.5 && v >= 9.95:
			return fmt.Sprintf("%.0f%s", v, unit)
		case v < 9.95:
			return fmt.Sprintf("%.1f%s", v, unit)
		}
		v /= 1e3
	}
	return ">1E"
}
