// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// WriteText writes the summary for a person at a terminal.
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
	fmt.Fprintf(w, "%s\n", clean(l.Name))
	fmt.Fprintf(w, "  %s kernels, %s launches named, %s barriers in %s lines, %s, %d processes\n", count(l.Kernels), count(l.Launches),
		count(l.Barriers), count(l.Lines.Total), microseconds(float64(l.LastUS-l.FirstUS)), len(l.Processes))
	fmt.Fprintf(w, "  lines: %s records, %s text of the application, %s damaged; %s cut, %s glued\n", count(l.Lines.Records), count(l.Lines.Text),
		count(l.Lines.Damaged), count(l.Lines.Cut), count(l.Lines.Glued))
	for _, note := range l.notes() {
		fmt.Fprintf(w, "  note: %s\n", note)
	}
	for _, p := range l.Processes {
		p.text(w)
	}
}

// notes are what a reader must know to take the numbers for what they are.
func (l *Log) notes() []string {
	var out []string
	if l.ReadError != "" {
		out = append(out, "the log could not be read to its end: "+clean(l.ReadError))
	}
	if l.Kernels == 0 && l.Launches > 0 {
		out = append(out, "no dispatch lines; they need AMD_LOG_LEVEL=4. Rates and kernels are from the names at level 3")
	}
	if l.Kernels == 0 && l.Launches == 0 && l.Lines.Records > 0 {
		out = append(out, "no kernels; AMD_LOG_LEVEL=4 and, if it is set, an AMD_LOG_MASK with 0x98 are needed")
	}
	if l.Lines.Records == 0 {
		out = append(out, "no line of this is a log of the HIP runtime")
	}
	if l.Orphans > 0 {
		out = append(out, fmt.Sprintf("%s kernels are counted, but the start of their line is lost, and with it their process", count(l.Orphans)))
	}
	if l.Dropped > 0 {
		out = append(out, fmt.Sprintf("%s events of processes beyond the first %d are only in the totals", count(l.Dropped), maxProcesses))
	}
	return out
}

func (p *Process) text(w io.Writer) {
	what := "kernels"
	if p.Basis == "launch" {
		what = "launches named"
	}
	fmt.Fprintf(w, "\nprocess %s: %s %s, %s/s, %d threads, %d queues", pidText(p.PID), count(p.basisCount()), what, rate(p.RateHz), p.Threads, len(p.Queues))
	if p.LifeCount != nil {
		fmt.Fprintf(w, " (%d created, %d deleted)", p.LifeCount["created"], p.LifeCount["deleted"])
	}
	fmt.Fprintln(w)
	if len(p.Queues) > 0 {
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintln(t, "  HWQ\tID\tPRIO\tSIZE\tKERNELS\tRATE/S\tINTERVAL P50\tP99\tLAG P50\tMAX\tBARRIERS\tCREATED\tDELETED")
		for _, q := range p.Queues {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\n", q.HWq, idText(q.ID), dash(q.Priority), sizeText(q.Size), count(q.Kernels), rate(q.RateHz),
				intervalText(q.Intervals, func(d *Distribution) float64 { return d.P50 }), intervalText(q.Intervals, func(d *Distribution) float64 { return d.P99 }),
				lagText(q.Lag, false), lagText(q.Lag, true), count(q.Barriers), q.Created, q.Deleted)
		}
		_ = t.Flush()
	}
	if d := p.Intervals; d != nil {
		fmt.Fprintf(w, "\n  time between kernels: P50 %s, P90 %s, P99 %s, max %s\n", microseconds(d.P50), microseconds(d.P90), microseconds(d.P99), microseconds(float64(d.Max)))
		bars(w, d, func(v uint64) string { return microseconds(float64(v)) })
	}
	if g := p.Grids; g != nil && g.Items != nil {
		fmt.Fprintf(w, "\n  work-items of a kernel: P50 %s, P99 %s, max %s; %d sizes\n", count(uint64(g.Items.P50)), count(uint64(g.Items.P99)), count(g.Items.Max), g.Distinct)
		bars(w, g.Items, count)
		for _, c := range g.Top[:min(len(g.Top), 5)] {
			fmt.Fprintf(w, "  %12s  grid %s, workgroup %s\n", count(c.Count), size3(c.Grid), size3(c.Workgroup))
		}
	}
	if len(p.TopKernels) > 0 {
		fmt.Fprintf(w, "\n  kernels: %d names\n", p.Names)
		for _, k := range p.TopKernels[:min(len(p.TopKernels), 10)] {
			fmt.Fprintf(w, "  %12s  %5.1f %%  %s\n", count(k.Count), 100*float64(k.Count)/float64(p.basisCount()), shorten(clean(k.Name), 90))
		}
	}
}

// basisCount is the number of kernels that the process's figures are about.
func (p *Process) basisCount() uint64 {
	if p.Basis == "launch" {
		return p.Launches
	}
	return p.Kernels
}

// bars draws a distribution, one line for each power of two.
func bars(w io.Writer, d *Distribution, name func(uint64) string) {
	const width = 40
	top := uint64(1)
	buckets := d.perPower()
	for _, b := range buckets {
		top = max(top, b.Count)
	}
	for _, b := range buckets {
		n := int(b.Count * width / top)
		if n == 0 {
			n = 1
		}
		fmt.Fprintf(w, "  %10s  %-*s %s\n", name(b.From), width, strings.Repeat("#", n), count(b.Count))
	}
}

func pidText(pid uint32) string {
	if pid == 0 {
		return "(pid not in the log)"
	}
	return fmt.Sprint(pid)
}

func idText(id int32) string {
	if id < 0 {
		return "-"
	}
	return fmt.Sprint(id)
}

func sizeText(n uint32) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func intervalText(d *Distribution, of func(*Distribution) float64) string {
	if d == nil {
		return "-"
	}
	return microseconds(of(d))
}

func lagText(d *Distribution, greatest bool) string {
	switch {
	case d == nil:
		return "-"
	case greatest:
		return count(d.Max)
	}
	return count(uint64(d.P50 + 0.5))
}

func size3(v [3]uint32) string { return fmt.Sprintf("%dx%dx%d", v[0], v[1], v[2]) }

func rate(v float64) string {
	switch {
	case v >= 100:
		return count(uint64(v + 0.5))
	case v == 0:
		return "-"
	}
	return fmt.Sprintf("%.3g", v)
}

// microseconds is a time in the unit that suits it.
func microseconds(v float64) string {
	switch {
	case v >= 10e6:
		return fmt.Sprintf("%.1f s", v/1e6)
	case v >= 10e3:
		return fmt.Sprintf("%.1f ms", v/1e3)
	}
	return fmt.Sprintf("%.0f us", v)
}

// count is a number with a comma every three digits.
func count(n uint64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// clean makes what a log says harmless on a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
