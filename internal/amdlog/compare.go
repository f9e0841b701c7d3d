// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Comparison sets two logs side by side.
type Comparison struct {
	Kernels uint64          `json:"kernels"` // of both
	A       *Log            `json:"a"`
	B       *Log            `json:"b"`
	Rows    []ComparisonRow `json:"rows"`
}

// ComparisonRow is one figure of both. Change is B over A, 0 where A is 0.
type ComparisonRow struct {
	What   string  `json:"what"`
	A      float64 `json:"a"`
	B      float64 `json:"b"`
	Change float64 `json:"change"`
	text   func(float64) string
}

// Compare sets a and b side by side.
func Compare(a, b *Log) *Comparison {
	c := &Comparison{Kernels: a.Kernels + b.Kernels, A: a, B: b}
	row := func(what string, text func(float64) string, of func(*Log) float64) {
		r := ComparisonRow{What: what, A: of(a), B: of(b), text: text}
		if r.A != 0 {
			r.Change = r.B / r.A
		}
		c.Rows = append(c.Rows, r)
	}
	whole := func(v float64) string { return count(uint64(v + 0.5)) }
	busiest := func(of func(*Process) float64) func(*Log) float64 {
		return func(l *Log) float64 {
			if len(l.Processes) == 0 {
				return 0
			}
			return of(l.Processes[0])
		}
	}
	interval := func(of func(*Distribution) float64) func(*Log) float64 {
		return busiest(func(p *Process) float64 {
			if p.Intervals == nil {
				return 0
			}
			return of(p.Intervals)
		})
	}
	row("lines", whole, func(l *Log) float64 { return float64(l.Lines.Total) })
	row("damaged lines", whole, func(l *Log) float64 { return float64(l.Lines.Damaged) })
	row("cut lines", whole, func(l *Log) float64 { return float64(l.Lines.Cut) })
	row("time covered", microseconds, func(l *Log) float64 { return float64(l.LastUS - l.FirstUS) })
	row("processes", whole, func(l *Log) float64 { return float64(len(l.Processes)) })
	row("kernels", whole, func(l *Log) float64 { return float64(l.Kernels) })
	row("launches named", whole, func(l *Log) float64 { return float64(l.Launches) })
	row("barriers", whole, func(l *Log) float64 { return float64(l.Barriers) })
	row("hardware queues", whole, func(l *Log) float64 {
		n := 0
		for _, p := range l.Processes {
			n += len(p.Queues)
		}
		return float64(n)
	})
	row("busiest process: kernels", whole, busiest(func(p *Process) float64 { return float64(p.basisCount()) }))
	row("busiest process: kernels/s", rate, busiest(func(p *Process) float64 { return p.RateHz }))
	row("busiest process: interval P50", microseconds, interval(func(d *Distribution) float64 { return d.P50 }))
	row("busiest process: interval P90", microseconds, interval(func(d *Distribution) float64 { return d.P90 }))
	row("busiest process: interval P99", microseconds, interval(func(d *Distribution) float64 { return d.P99 }))
	row("busiest process: interval max", microseconds, interval(func(d *Distribution) float64 { return float64(d.Max) }))
	row("busiest process: work-items P50", whole, busiest(func(p *Process) float64 {
		if p.Grids == nil || p.Grids.Items == nil {
			return 0
		}
		return p.Grids.Items.P50
	}))
	row("busiest process: distinct kernels", whole, busiest(func(p *Process) float64 { return float64(p.Names) }))
	row("greatest rptr/wptr lag", whole, busiest(func(p *Process) float64 {
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

// RowText is a row as it is shown.
type RowText struct{ A, B, Change string }

// Show makes the texts of the row.
func (r ComparisonRow) Show() RowText {
	t := RowText{A: r.text(r.A), B: r.text(r.B), Change: "-"}
	if r.Change != 0 {
		t.Change = fmt.Sprintf("%.2fx", r.Change)
	}
	return t
}

// WriteText writes the table.
func (c *Comparison) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "\tA\tB\tB/A")
	fmt.Fprintf(t, "log\t%s\t%s\t\n", clean(c.A.Name), clean(c.B.Name))
	for _, r := range c.Rows {
		x := r.Show()
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.What, x.A, x.B, x.Change)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write comparison: %w", err)
	}
	return nil
}
