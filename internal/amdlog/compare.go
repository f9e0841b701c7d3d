// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"fmt"
	"io"

	"xsched/internal/report"
)

// Comparison compares two logs.
type Comparison struct {
	Kernels uint64          `json:"kernels"` // of both logs
	A       *Log            `json:"a"`
	B       *Log            `json:"b"`
	Rows    []ComparisonRow `json:"rows"`
}

// ComparisonRow is one figure of both logs. Change is B/A, or 0 if A is 0.
type ComparisonRow struct {
	What   string  `json:"what"`
	A      float64 `json:"a"`
	B      float64 `json:"b"`
	Change float64 `json:"change"`
	text   func(float64) string
}

// busiestRate is the row of the headline.
const busiestRate = "busiest process: kernels/s"

// Compare compares a and b.
func Compare(a, b *Log) *Comparison {
	c := &Comparison{Kernels: a.Kernels + b.Kernels, A: a, B: b}
	row := func(what string, text func(float64) string, of func(*Log) float64) {
		r := ComparisonRow{What: what, A: of(a), B: of(b), text: text}
		if r.A != 0 {
			r.Change = r.B / r.A
		}
		c.Rows = append(c.Rows, r)
	}
	busiest := func(of func(*Process) float64) func(*Log) float64 {
		return func(l *Log) float64 {
			if len(l.Processes) == 0 {
				return 0
			}
			return of(l.Processes[0])
		}
	}
	interval := func(of func(*report.Distribution) float64) func(*Log) float64 {
		return busiest(func(p *Process) float64 {
			if p.Intervals == nil {
				return 0
			}
			return of(p.Intervals)
		})
	}
	row("lines", report.Count, func(l *Log) float64 { return float64(l.Lines.Total) })
	row("damaged lines", report.Count, func(l *Log) float64 { return float64(l.Lines.Damaged) })
	row("cut lines", report.Count, func(l *Log) float64 { return float64(l.Lines.Cut) })
	row("time covered", report.Micros, func(l *Log) float64 { return float64(l.LastUS - l.FirstUS) })
	row("processes", report.Count, func(l *Log) float64 { return float64(len(l.Processes)) })
	row("kernels", report.Count, func(l *Log) float64 { return float64(l.Kernels) })
	row("kernel launches", report.Count, func(l *Log) float64 { return float64(l.Launches) })
	row("enqueued kernels", report.Count, func(l *Log) float64 { return float64(l.Commands) })
	row("barriers", report.Count, func(l *Log) float64 { return float64(l.Barriers) })
	row("hardware queues", report.Count, func(l *Log) float64 {
		n := 0
		for _, p := range l.Processes {
			n += len(p.Queues)
		}
		return float64(n)
	})
	row("busiest process: kernels", report.Count, busiest(func(p *Process) float64 { return float64(p.Kernels) }))
	row(busiestRate, rate, busiest(func(p *Process) float64 { return p.RateHz }))
	row("busiest process: interval P50", report.Micros, interval(func(d *report.Distribution) float64 { return d.P50 }))
	row("busiest process: interval P90", report.Micros, interval(func(d *report.Distribution) float64 { return d.P90 }))
	row("busiest process: interval P99", report.Micros, interval(func(d *report.Distribution) float64 { return d.P99 }))
	row("busiest process: interval max", report.Micros, interval(func(d *report.Distribution) float64 { return float64(d.Max) }))
	row("busiest process: work-items P50", report.Count, busiest(func(p *Process) float64 {
		if p.Grids == nil || p.Grids.Items == nil {
			return 0
		}
		return p.Grids.Items.P50
	}))
	row("busiest process: distinct kernels", report.Count, busiest(func(p *Process) float64 { return float64(p.Names) }))
	row("greatest rptr/wptr lag", report.Count, busiest(func(p *Process) float64 {
		greatest := uint64(0)
		for _, q := range p.Queues {
			if q.Lag != nil {
				greatest = max(greatest, q.Lag.Max)
			}
		}
		return float64(greatest)
	}))
	return c
}

// table formats the rows.
func (c *Comparison) table() *report.Table {
	t := &report.Table{Left: 1, Head: []string{"", "A", "B", "B/A"}}
	t.Add("log", report.Clean(c.A.Name), report.Clean(c.B.Name), "")
	for _, r := range c.Rows {
		change := "-"
		if r.Change != 0 {
			change = fmt.Sprintf("%.2fx", r.Change)
		}
		t.Add(r.What, r.text(r.A), r.text(r.B), change)
	}
	return t
}

// WriteText writes the table.
func (c *Comparison) WriteText(w io.Writer) error { return c.table().WriteText(w, "") }
