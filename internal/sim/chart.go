// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"xsched/internal/report"
)

// charts returns latency and throughput of every tenant under every policy, and a short timeline of
// the GPU.
func (r *Result) charts() []*report.Chart {
	var latency, kept []report.Row
	for class := range r.Runs[0].Classes {
		for i := range r.Runs {
			c := &r.Runs[i].Classes[class]
			row := report.Row{Group: report.Shorten(c.Name, 14), Name: report.Shorten(r.Runs[i].Name, 14), Class: fmt.Sprintf("c%d", i%8)}
			row.Parts = []report.Part{{Value: c.Kept, Class: row.Class, Name: c.Name}}
			kept = append(kept, row)
			if c.Latency != nil {
				row.Low, row.High, row.Most = c.Latency.P50, c.Latency.P99, c.Latency.Max
				latency = append(latency, row)
			}
		}
	}
	var out []*report.Chart
	if len(latency) > 0 {
		out = append(out, report.Ranges("Request latency: P50 to P99, mark at the maximum", "ms (log)", latency))
	}
	out = append(out, report.Bars("Throughput kept, relative to each tenant alone on a GPU", "", 0, 1.1, false, report.WholePercent, kept))
	for i := range r.Runs {
		if run := &r.Runs[i]; len(run.tracks) > 0 {
			out = append(out, report.Timeline(fmt.Sprintf("Who has the GPU under %s: the first %v after the warm-up", run.Name, run.draw), run.draw, run.tracks))
		}
	}
	return out
}

// WriteSVG writes the charts of the comparison as one file.
func (r *Result) WriteSVG(w io.Writer) error {
	return report.WriteSVG(w, r.head(), "", r.charts()...)
}

// WriteTimeline writes the timeline of the first run, which must have been drawn.
func (r *Result) WriteTimeline(w io.Writer) error {
	run := &r.Runs[0]
	if len(run.tracks) == 0 {
		return errors.New("draw timeline: none was recorded")
	}
	title := r.Scenario
	if run.Name != title {
		title = run.Name + ": " + title
	}
	return report.WriteSVG(w, title, r.About, report.Timeline(title, run.draw, run.tracks))
}

// WriteHTML writes tables and charts as one page.
func (r *Result) WriteHTML(w io.Writer) error {
	tables := r.tables()
	p := report.Page{Title: r.Scenario}
	p.Add(report.Block{Soft: r.head(), Text: strings.Join(strings.Fields(r.About), " ")},
		report.Block{
			Notice: "Simulated: the engine and the policies are XSched's own, the GPU is a model with the costs measured on an H200.",
			Table:  tables[0],
		})
	for _, t := range tables[1:] {
		p.Add(report.Block{Table: t})
	}
	for _, c := range r.charts() {
		p.AddChart(c, "")
	}
	return p.Write(w)
}
