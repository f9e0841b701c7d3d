// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"xsched/internal/report"
)

// about introduces the page.
const about = "From the log of AMD's HIP runtime. A kernel counts when the runtime writes its packet into a hardware queue. " +
	"The log does not contain how long it then ran on the GPU."

// WriteHTML writes the self-contained page.
func (r *Report) WriteHTML(w io.Writer) error {
	p := &report.Page{Title: "What was submitted to the GPU", Headline: r.headline()}
	p.Add(report.Block{Soft: about})
	for _, l := range r.Logs {
		l.page(p, "")
	}
	return p.Write(w)
}

// headline states how much was submitted. The log has no latencies.
func (r *Report) headline() string {
	processes := 0
	var busiest *Process
	for _, l := range r.Logs {
		processes += len(l.Processes)
		for _, p := range l.Processes {
			if busiest == nil || p.RateHz > busiest.RateHz {
				busiest = p
			}
		}
	}
	if r.Kernels == 0 {
		return "No kernels found"
	}
	out := fmt.Sprintf("%s from %s", kernels(r.Kernels), report.Plural(processes, "process"))
	if busiest != nil && busiest.RateHz > 0 {
		out += fmt.Sprintf("; the busiest submits %s a second", rate(busiest.RateHz))
	}
	return out
}

func kernels(n uint64) string {
	if n == 1 {
		return "1 kernel"
	}
	return count(n) + " kernels"
}

// headline compares the rates of the busiest processes, or the counts where a log has no rate.
func (c *Comparison) headline() string {
	for _, r := range c.Rows {
		if r.What != busiestRate || r.A == 0 || r.B == 0 {
			continue
		}
		switch factor := report.Factor(max(r.B/r.A, r.A/r.B)); {
		case factor == "1.0x":
			return "B submits as many kernels a second as A"
		case r.B > r.A:
			return fmt.Sprintf("B submits %s more kernels a second than A", factor)
		default:
			return fmt.Sprintf("B submits %s fewer kernels a second than A", factor)
		}
	}
	return fmt.Sprintf("A has %s, B has %s", kernels(c.A.Kernels), kernels(c.B.Kernels))
}

// WriteHTML writes the self-contained page.
func (c *Comparison) WriteHTML(w io.Writer) error {
	p := &report.Page{Title: "Comparison of two logs", Headline: c.headline()}
	p.Add(report.Block{Soft: about})
	var intervals, sizes []report.Row
	for i, l := range []*Log{c.A, c.B} {
		if len(l.Processes) > 0 {
			busiest := l.Processes[0]
			row := report.Row{Name: fmt.Sprintf("%c: %s", 'A'+i, pidText(busiest.PID)), Class: fmt.Sprintf("c%d", i), Dist: busiest.Intervals}
			intervals = append(intervals, row)
			if busiest.Grids != nil {
				row.Dist = busiest.Grids.Items
				sizes = append(sizes, row)
			}
		}
	}
	p.AddChart(report.Distributions("Time between kernels of the busiest process", "time (log)", report.Micros, intervals), "")
	p.AddChart(report.Distributions("Kernel size of the busiest process", "work-items (log)", report.Count, sizes), "")
	p.Add(report.Block{Heading: "All figures", Table: c.table()})
	c.A.page(p, "A: ")
	c.B.page(p, "B: ")
	return p.Write(w)
}

func (l *Log) page(p *report.Page, letter string) {
	perSecond := 0.0
	for _, proc := range l.Processes {
		perSecond += proc.RateHz
	}
	forms := []string{l.Lines.text()}
	for _, form := range slices.Sorted(maps.Keys(l.Prefixes)) {
		forms = append(forms, fmt.Sprintf("prefix %s: %s", form, count(l.Prefixes[form])))
	}
	_, processes, _ := strings.Cut(report.Plural(len(l.Processes), "process"), " ")
	p.Add(report.Block{
		Section: letter + report.Clean(l.Name), Soft: strings.Join(forms, " · "),
		Cards: []report.Card{
			{Value: count(l.Kernels), Name: l.what()},
			{Value: rate(perSecond) + " /s", Name: "while kernels were submitted"},
			{Value: l.span(), Name: "covered"},
			{Value: fmt.Sprint(len(l.Processes)), Name: processes},
			{Value: count(l.Lines.Total), Name: "lines"},
		},
	})
	for _, note := range l.notes() {
		p.Add(report.Block{Notice: note})
	}
	for _, proc := range l.Processes {
		proc.page(p)
	}
}

func (p *Process) page(page *report.Page) {
	page.Add(report.Block{Section: "Process " + pidText(p.PID), Soft: fmt.Sprintf("%s %s, %s/s, %s", count(p.Kernels), p.what(), rate(p.RateHz), report.Plural(p.Threads, "thread"))})
	intervals := []report.Row{{Name: "all", Class: "c0", Dist: p.Intervals}}
	overTime := []report.Row{areaRow("all", "c0", p.Timeline, false)}
	var lags []report.Row
	for i, q := range p.Queues {
		class := fmt.Sprintf("c%d", 1+i%3)
		if len(p.Queues) > 1 && q.Kernels > 0 {
			overTime = append(overTime, areaRow(q.HWq, class, q.Timeline, false))
			if len(intervals) < 9 {
				intervals = append(intervals, report.Row{Name: q.HWq, Class: class, Dist: q.Intervals})
			}
		}
		if q.Timeline != nil && q.Timeline.LagMean != nil {
			lags = append(lags, areaRow(q.HWq, class, q.Timeline, true))
		}
	}
	const since = "time since the first kernel"
	page.AddChart(report.Areas("Kernels per second", since, func(v float64) string { return rate(v) + "/s" }, overTime), "Each row is scaled to its own maximum.")
	page.AddChart(report.Areas("Packets waiting in the queue", since, func(v float64) string { return fmt.Sprintf("%.1f", v) }, lags),
		"Packets written but not yet read by the GPU (wptr − rptr) when a kernel was submitted, mean.")
	page.AddChart(report.Distributions("Time between kernels", "time (log)", report.Micros, intervals), "Each row is scaled to its highest bar; the vertical line is the P99.")
	if g := p.Grids; g != nil {
		page.AddChart(report.Distributions("Kernel size", "work-items (log)", report.Count, []report.Row{{Name: "kernels", Class: "c0", Dist: g.Items}}), "")
	}
	if len(p.Queues) > 0 {
		page.Add(report.Block{Heading: "Hardware queues", Table: p.queueTable()})
	}
	if g := p.Grids; g != nil {
		t := &report.Table{Left: 1, Head: []string{"grid", "workgroup", "kernels"}}
		for _, c := range g.Top {
			t.Add(size3(c.Grid), size3(c.Workgroup), count(c.Count))
		}
		page.Add(report.Block{Heading: "Most frequent sizes", Table: t})
	}
	if len(p.TopKernels) > 0 {
		page.Add(report.Block{Heading: "Most frequent kernels", Table: p.topTable(12, 110)})
	}
	if len(p.Life) > 0 {
		t := &report.Table{Left: 3, Head: []string{"time, us", "event", "ring (HWq)", "size", "priority"}}
		for _, e := range p.Life {
			t.Add(fmt.Sprint(e.TimeUS), e.Kind, e.HWq, known(e.Size > 0, e.Size), known(e.Priority != "", e.Priority))
		}
		page.Add(report.Block{Heading: "Queue creation and deletion", Table: t})
	}
}

// areaRow draws a timeline: kernels per second, or the mean lag.
func areaRow(name, class string, t *Timeline, lag bool) report.Row {
	row := report.Row{Name: name, Class: class}
	if t == nil {
		return row
	}
	row.Start, row.Step = float64(t.StartUS), float64(t.BinUS)
	for i, n := range t.Kernels {
		v := float64(n) / float64(t.BinUS) * 1e6
		if lag {
			v = t.LagMean[i]
		}
		row.Values = append(row.Values, v)
	}
	return row
}
