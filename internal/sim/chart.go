// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"xsched/internal/model"
	"xsched/internal/report"
)

// charts returns the story of the comparison: latency of the service, a short timeline of the GPU for
// each policy, and latency against throughput. Then latency and throughput of every tenant.
func (r *Result) charts() []*report.Chart {
	var out []*report.Chart
	add := func(c *report.Chart) {
		if c != nil {
			out = append(out, c)
		}
	}
	if at := r.service(); at >= 0 {
		add(report.CDF("Latency distribution of "+report.Shorten(r.Runs[0].Classes[at].Name, 24), "latency of a request, ms (log)", r.curves(at)))
	}
	for i := range r.Runs {
		if run := &r.Runs[i]; len(run.tracks) > 0 {
			add(report.Timeline(fmt.Sprintf("Who has the GPU under %s: the first %s after the warm-up", run.Name, report.Micros(float64(run.draw.Microseconds()))), run.draw, run.tracks))
		}
	}
	add(r.pareto())
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
	if len(latency) > 0 {
		add(report.Ranges("Request latency: P50 to P99, mark at the maximum", "ms (log)", latency))
	}
	add(report.Bars("Throughput kept, relative to each tenant alone on a GPU", "", 0, 1.1, false, report.WholePercent, kept))
	return out
}

// service returns the tenant of the headline: of those with requests that arrive by themselves, the
// first of the highest priority; -1 if there is none.
func (r *Result) service() int {
	best := -1
	classes := r.Runs[0].Classes
	for i := range classes {
		if classes[i].open && classes[i].Latency != nil && (best < 0 || classes[i].Priority > classes[best].Priority) {
			best = i
		}
	}
	return best
}

func (r *Result) curves(class int) []report.Curve {
	var out []report.Curve
	for i := range r.Runs {
		c := &r.Runs[i].Classes[class]
		out = append(out, report.Curve{Name: r.Runs[i].Name, Class: fmt.Sprintf("c%d", i%8), Values: c.latency.Samples(2000, 1e6)})
	}
	return out
}

// kept returns the throughput of the background: of all lows together, else of the tenant that keeps
// least, else -1.
func (r *RunResult) kept(service int) float64 {
	if r.Lows != nil {
		return r.Lows.Kept
	}
	least := -1.0
	for i := range r.Classes {
		if c := &r.Classes[i]; i != service && !c.open && (least < 0 || c.Kept < least) {
			least = c.Kept
		}
	}
	return least
}

func (r *Result) pareto() *report.Chart {
	at := r.service()
	if at < 0 {
		return nil
	}
	var series []report.Series
	for i := range r.Runs {
		run, c := &r.Runs[i], &r.Runs[i].Classes[at]
		if kept := run.kept(at); c.Latency != nil && c.Alone != nil && c.Alone.P99 > 0 && kept >= 0 {
			series = append(series, report.Series{
				Name: run.Name, Class: fmt.Sprintf("c%d", i%8),
				Points: []report.Point{{X: c.Latency.P99 / c.Alone.P99, Y: kept, Name: r.Scenario}},
			})
		}
	}
	return report.Scatter("Latency against throughput", "P99 of a request, relative to alone (log)", "throughput that the background keeps", report.WholePercent, series)
}

// headline states the result of the run with the lowest P99 of the service, relative to native, or to
// the service alone. Without a service it states what the tenants keep.
func (r *Result) headline() string {
	at := r.service()
	var native, best *RunResult
	for i := range r.Runs {
		run := &r.Runs[i]
		switch {
		case run.Mode == model.ModeOff && len(r.Runs) > 1:
			native = run
		case best == nil || at < 0 && run.least() > best.least() || at >= 0 && run.p99(at) < best.p99(at):
			best = run
		}
	}
	if best == nil { // all runs are native
		best, native = &r.Runs[0], nil
	}
	if at < 0 {
		return fmt.Sprintf("%s: every tenant keeps at least %s of its throughput alone", best.Name, report.RoundPercent(best.least()))
	}
	o := report.Outcome{After: best.p99(at), Kept: best.kept(at)}
	base := "alone"
	if native != nil {
		o.Before, base = native.p99(at), native.Name
	} else if alone := best.Classes[at].Alone; alone != nil {
		o.Before = alone.P99
	}
	return report.Headline(best.Name, base, o)
}

// p99 returns the P99 of a tenant; one without a finished request is the slowest.
func (r *RunResult) p99(class int) float64 {
	if l := r.Classes[class].Latency; l != nil {
		return l.P99
	}
	return math.Inf(1)
}

// least returns what the tenant keeps that keeps least.
func (r *RunResult) least() float64 {
	least := math.Inf(1)
	for i := range r.Classes {
		least = min(least, r.Classes[i].Kept)
	}
	return least
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

// tenantCharts is the number of charts about single tenants. They follow the tables.
const tenantCharts = 2

// WriteHTML writes the self-contained page.
func (r *Result) WriteHTML(w io.Writer) error {
	p := report.Page{Title: r.Scenario, Headline: r.headline()}
	p.Add(report.Block{
		Text: strings.Join(strings.Fields(r.About), " "), Soft: r.head(),
		Notice: "Simulated: the engine and the policies are XSched's own, the GPU is a model with the costs measured on an H200.",
	})
	charts := r.charts()
	story := max(len(charts)-tenantCharts, 0)
	for _, c := range charts[:story] {
		p.AddChart(c, "")
	}
	for i, t := range r.tables() {
		heading := ""
		if i == 0 {
			heading = "All policies and tenants"
		}
		p.Add(report.Block{Heading: heading, Table: t})
	}
	for _, c := range charts[story:] {
		p.AddChart(c, "")
	}
	return p.Write(w)
}
