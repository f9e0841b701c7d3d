// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"xsched/internal/chart"
)

//go:embed page.gohtml
var pageSource string

type pageView struct {
	Title      string
	Comparison *Comparison
	Both       []*chart.Chart // intervals and sizes of two logs
	Kernels    string
	Lines      string
	Logs       []logView
}

type logView struct {
	*Log
	Letter    string
	Notes     []string
	Span      string
	Rate      string
	Processes []processView
}

type processView struct {
	*Process
	Name      string
	Count     string
	Rate      string
	Time      *chart.Chart
	Lag       *chart.Chart
	Intervals *chart.Chart
	Grids     *chart.Chart
	Top       *chart.Chart
	Queues    []queueView
}

type queueView struct {
	*Queue
	Priority, Size, Kernels, Rate, P50, P99, Lag50, Lag99, LagMax, Barriers string
}

// WriteHTML writes the self-contained page.
func (r *Report) WriteHTML(w io.Writer) error {
	v := pageView{Title: "What was submitted to the GPU", Kernels: count(r.Kernels), Lines: count(r.Lines.Total)}
	for _, l := range r.Logs {
		v.Logs = append(v.Logs, l.view(""))
	}
	return v.write(w)
}

// WriteHTML writes the self-contained page.
func (c *Comparison) WriteHTML(w io.Writer) error {
	v := pageView{
		Title: "Two logs side by side", Comparison: c, Kernels: count(c.Kernels), Lines: count(c.A.Lines.Total + c.B.Lines.Total),
		Logs: []logView{c.A.view("A"), c.B.view("B")},
	}
	var intervals, sizes []curve
	for i, l := range []*Log{c.A, c.B} {
		if len(l.Processes) > 0 {
			p := l.Processes[0]
			name, class := fmt.Sprintf("%c: %s", 'A'+i, pidText(p.PID)), fmt.Sprintf("c%d", i)
			intervals = append(intervals, curve{name, class, p.Intervals})
			if p.Grids != nil {
				sizes = append(sizes, curve{name, class, p.Grids.Items})
			}
		}
	}
	for _, pic := range []*chart.Chart{
		distributionChart("Time between kernels of both logs", "time between kernels of the busiest process (log)", microseconds, intervals),
		distributionChart("Size of kernels of both logs", "work-items of a kernel (log)", floatCount, sizes),
	} {
		if pic != nil {
			v.Both = append(v.Both, pic)
		}
	}
	return v.write(w)
}

func (v *pageView) write(w io.Writer) error {
	t, err := chart.Templates(template.New("page"))
	if err == nil {
		t, err = t.Funcs(template.FuncMap{
			"count": count, "clean": clean, "us": microseconds, "size": size3,
			"float": func(n uint64) float64 { return float64(n) },
		}).Parse(pageSource)
	}
	if err != nil {
		return fmt.Errorf("parse page template: %w", err)
	}
	if err := t.Execute(w, v); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

func (l *Log) view(letter string) logView {
	v := logView{Log: l, Letter: letter, Notes: l.notes(), Span: microseconds(float64(l.LastUS - l.FirstUS))}
	sum := 0.0
	for _, p := range l.Processes {
		sum += p.RateHz
		v.Processes = append(v.Processes, p.view())
	}
	v.Rate = rate(sum)
	return v
}

func (p *Process) view() processView {
	v := processView{Process: p, Name: pidText(p.PID), Count: count(p.basisCount()), Rate: rate(p.RateHz)}
	kernels := []lane{{"all", "c0", p.Timeline}}
	var lags []lane
	rows := []curve{{"all", "c0", p.Intervals}}
	for i, q := range p.Queues {
		v.Queues = append(v.Queues, q.view())
		if q.RateHz == 0 && q.Activity.Kernels == 0 {
			continue
		}
		class := fmt.Sprintf("c%d", 1+i%3)
		if len(p.Queues) > 1 {
			kernels = append(kernels, lane{q.HWq, class, q.Timeline})
			if len(rows) < 9 {
				rows = append(rows, curve{q.HWq, class, q.Intervals})
			}
		}
		if q.Timeline != nil && q.Timeline.LagMean != nil {
			lags = append(lags, lane{q.HWq, class, q.Timeline})
		}
	}
	v.Time = timeChart("Kernels over time", kernels, func(t *Timeline, i int) float64 { return float64(t.Kernels[i]) / float64(t.BinUS) * 1e6 },
		func(n float64) string { return rate(n) + "/s" })
	v.Lag = timeChart("Packets waiting over time", lags, func(t *Timeline, i int) float64 { return t.LagMean[i] }, func(n float64) string { return fmt.Sprintf("%.1f", n) })
	v.Intervals = distributionChart("Time between kernels", "time between kernels (log)", microseconds, rows)
	if p.Grids != nil {
		v.Grids = distributionChart("Size of kernels", "work-items of a kernel (log)", floatCount, []curve{{"kernels", "c0", p.Grids.Items}})
	}
	var names []string
	var counts []uint64
	for _, k := range p.TopKernels[:min(len(p.TopKernels), 12)] {
		names, counts = append(names, clean(k.Name)), append(counts, k.Count)
	}
	v.Top = topChart("Most frequent kernels", names, counts, p.basisCount())
	return v
}

func (q *Queue) view() queueView {
	v := queueView{
		Queue: q, Priority: dash(q.Priority), Size: sizeText(q.Size), Kernels: count(q.Activity.Kernels), Rate: rate(q.RateHz), Barriers: count(q.Barriers),
		P50: "–", P99: "–", Lag50: "–", Lag99: "–", LagMax: "–",
	}
	if d := q.Intervals; d != nil {
		v.P50, v.P99 = microseconds(d.P50), microseconds(d.P99)
	}
	if d := q.Lag; d != nil {
		v.Lag50, v.Lag99, v.LagMax = floatCount(d.P50), floatCount(d.P99), count(d.Max)
	}
	return v
}

func floatCount(v float64) string { return count(uint64(v + 0.5)) }
