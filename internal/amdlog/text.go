// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"xsched/internal/report"
)

// WriteText writes the summary as text.
func (r *Report) WriteText(w io.Writer) error {
	b := bufio.NewWriter(w)
	for i, l := range r.Logs {
		if i > 0 {
			fmt.Fprintln(b)
		}
		l.text(b)
	}
	if len(r.Logs) > 1 {
		fmt.Fprintf(b, "\nall logs: %s kernels in %s lines\n", count(r.Kernels), count(r.Lines.Total))
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	return nil
}

func (l *Log) text(w io.Writer) {
	what := l.what()
	if l.Dispatches > 0 {
		what += fmt.Sprintf(", %s launches", count(l.Launches))
	}
	fmt.Fprintf(w, "%s\n", report.Clean(l.Name))
	fmt.Fprintf(w, "  %s %s, %s barriers in %s lines, %s, %s\n", count(l.Kernels), what,
		count(l.Barriers), count(l.Lines.Total), l.span(), report.Plural(len(l.Processes), "process"))
	fmt.Fprintf(w, "  %s\n", l.Lines.text())
	for _, note := range l.notes() {
		fmt.Fprintf(w, "  note: %s\n", note)
	}
	for _, p := range l.Processes {
		p.text(w)
	}
}

// what labels the number of kernels by its basis.
func (p *Process) what() string {
	switch p.Basis {
	case basisLaunch:
		return "kernel launches"
	case basisCommand:
		return "kernels enqueued"
	}
	return "kernels dispatched"
}

func (l *Log) what() string {
	what := ""
	for _, p := range l.Processes {
		switch {
		case p.Basis == "":
		case what == "":
			what = p.what()
		case what != p.what():
			return "kernels"
		}
	}
	if what == "" {
		return "kernels"
	}
	return what
}

func (l *Log) span() string { return report.Micros(float64(l.LastUS - l.FirstUS)) }

func (l *Lines) text() string {
	return fmt.Sprintf("lines: %s records, %s application output, %s damaged, %s truncated, %s interleaved",
		count(l.Records), count(l.Text), count(l.Damaged), count(l.Cut), count(l.Glued))
}

// notes are caveats about the figures.
func (l *Log) notes() []string {
	var out []string
	if l.ReadError != "" {
		out = append(out, "the log could not be read to its end: "+report.Clean(l.ReadError))
	}
	switch {
	case l.Dispatches > 0:
	case l.Launches > 0:
		out = append(out, "the log has no dispatch records, which need AMD_LOG_LEVEL=4; rates and kernels are from launch records at level 3")
	case l.Commands > 0:
		out = append(out, "the log has only records of enqueued kernels: no names, sizes and hardware queues; set AMD_LOG_LEVEL=4 and include 0x98 in AMD_LOG_MASK")
	}
	for _, p := range l.Processes {
		for _, f := range p.Failures {
			out = append(out, fmt.Sprintf("process %s: %s failed with %s %s, and launched nothing", pidText(p.PID), f.Call, f.Error, report.Plural(int(f.Count), "time")))
		}
	}
	if l.Kernels == 0 && l.Failed == 0 && l.Lines.Records > 0 {
		out = append(out, "no kernels found; set AMD_LOG_LEVEL=4 and, if AMD_LOG_MASK is set, include 0x98 in it")
	}
	if l.Lines.Records == 0 {
		out = append(out, "no line is a record of the HIP runtime")
	}
	if l.Orphans > 0 {
		out = append(out, fmt.Sprintf("%s kernels have no process, because the start of their line is missing", count(l.Orphans)))
	}
	if l.Dropped > 0 {
		out = append(out, fmt.Sprintf("%s events of processes beyond the first %d are only in the totals", count(l.Dropped), maxProcesses))
	}
	return out
}

func (p *Process) text(w io.Writer) {
	fmt.Fprintf(w, "\nprocess %s: %s %s, %s/s, %s, %s", pidText(p.PID), count(p.Kernels), p.what(), rate(p.RateHz),
		report.Plural(p.Threads, "thread"), report.Plural(len(p.Queues), "queue"))
	if p.LifeCount != nil {
		fmt.Fprintf(w, " (%d created, %d deleted)", p.LifeCount["created"], p.LifeCount["deleted"])
	}
	fmt.Fprintln(w)
	if len(p.Queues) > 0 {
		_ = p.queueTable().WriteText(w, "  ")
	}
	if p.Basis == basisCommand {
		for _, s := range p.Streams {
			fmt.Fprintf(w, "  %12s  to the runtime's queue %s\n", count(s.Kernels), s.Queue)
		}
	}
	if d := p.Intervals; d != nil {
		fmt.Fprintf(w, "\n  time between kernels: P50 %s, P90 %s, P99 %s, max %s\n", report.Micros(d.P50), report.Micros(d.P90), report.Micros(d.P99), report.Micros(float64(d.Max)))
		bars(w, d, report.Micros)
	}
	if g := p.Grids; g != nil && g.Items != nil {
		fmt.Fprintf(w, "\n  work-items per kernel: P50 %s, P99 %s, max %s; %s\n", report.Count(g.Items.P50), report.Count(g.Items.P99), count(g.Items.Max), report.Plural(g.Distinct, "size"))
		bars(w, g.Items, report.Count)
		for _, c := range g.Top[:min(len(g.Top), 5)] {
			fmt.Fprintf(w, "  %12s  grid %s, workgroup %s\n", count(c.Count), size3(c.Grid), size3(c.Workgroup))
		}
	}
	if len(p.TopKernels) > 0 {
		fmt.Fprintf(w, "\n  most frequent kernels, of %s\n", report.Plural(p.Names, "name"))
		for _, row := range p.topTable(10, 90).Rows {
			fmt.Fprintf(w, "  %12s  %7s  %s\n", row[1], row[2], row[0])
		}
	}
}

// queueTable has a row for each hardware queue.
func (p *Process) queueTable() *report.Table {
	t := &report.Table{Left: 1, Head: []string{
		"ring (HWq)", "id", "priority", "size", "kernels", "per s", "interval P50", "P99", "waiting P50", "P99", "max", "barriers", "created", "deleted",
	}}
	for _, q := range p.Queues {
		row := []string{q.HWq, known(q.ID >= 0, q.ID), known(q.Priority != "", q.Priority), known(q.Size > 0, q.Size), known(p.Basis == basisDispatch, count(q.Kernels)), rate(q.RateHz), "-", "-", "-", "-", "-"}
		if d := q.Intervals; d != nil {
			row[6], row[7] = report.Micros(d.P50), report.Micros(d.P99)
		}
		if d := q.Lag; d != nil {
			row[8], row[9], row[10] = report.Count(d.P50), report.Count(d.P99), count(d.Max)
		}
		t.Add(append(row, count(q.Barriers), count(q.Created), count(q.Deleted))...)
	}
	return t
}

// topTable has the most frequent kernels.
func (p *Process) topTable(most, width int) *report.Table {
	t := &report.Table{Left: 1, Head: []string{"kernel", "count", "share"}}
	for _, k := range p.TopKernels[:min(len(p.TopKernels), most)] {
		t.Add(report.Shorten(report.Clean(k.Name), width), count(k.Count), report.Percent(float64(k.Count)/float64(max(p.Kernels, 1))))
	}
	return t
}

// bars draws a distribution as text, one line per power of two.
func bars(w io.Writer, d *report.Distribution, name func(float64) string) {
	const width = 40
	top := uint64(1)
	for _, b := range d.PerPower() {
		top = max(top, b.Count)
	}
	for _, b := range d.PerPower() {
		fmt.Fprintf(w, "  %10s  %-*s %s\n", name(float64(b.From)), width, strings.Repeat("#", max(1, int(b.Count*width/top))), count(b.Count))
	}
}

func pidText(pid uint32) string {
	if pid == 0 {
		return "(pid not in the log)"
	}
	return fmt.Sprint(pid)
}

// known returns v as text, or a dash.
func known(ok bool, v any) string {
	if !ok {
		return "-"
	}
	return fmt.Sprint(v)
}

func size3(v [3]uint32) string { return fmt.Sprintf("%dx%dx%d", v[0], v[1], v[2]) }

func rate(v float64) string {
	switch {
	case v >= 100:
		return report.Count(v)
	case v == 0:
		return "-"
	}
	return fmt.Sprintf("%.3g", v)
}

func count(n uint64) string { return report.Count(float64(n)) }
