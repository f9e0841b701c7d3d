// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"fmt"
	"io"
	"strings"

	"xsched/internal/bench"
	"xsched/internal/report"
)

// WriteJSON writes the comparison, indented.
func (m *Result) WriteJSON(w io.Writer) error { return report.WriteJSON(w, m) }

// WriteTable writes the comparison as text.
func (m *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s%s\n", m.Device, m.Machine.String(), m.Date.Format(", 2006-01-02 15:04 MST"))
	fmt.Fprintf(&b, "%s\n\n", m.workload())
	_ = m.table().WriteText(&b, "  ")
	fmt.Fprintln(&b)
	for _, row := range m.Rows {
		for _, c := range row.Checks {
			fmt.Fprintf(&b, "  proof, %s: %s: %s\n", row.Name, c.Name, c.Detail)
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// workload describes what ran.
func (m *Result) workload() string {
	return fmt.Sprintf("one program: %g requests a second of %s, and in another process %s kernels back to back; policy %s; order seed %d",
		m.Workload.HighRate, bench.Micros(m.Workload.HighUS), bench.Micros(m.Workload.LowUS), m.Policy, m.Seed)
}

// table has a row for each scheduler.
func (m *Result) table() *report.Table {
	native := m.Rows[0]
	table := &report.Table{Left: 1, Head: []string{
		"scheduler", "P50 ms", "P99 ms", "max ms", "P99/native", "n", "low kept", "high", "low", "switch", "idle", "preempted", "held", "intercepted",
	}}
	for _, row := range m.Rows {
		h := row.High
		if h == nil {
			h = &report.Latency{}
		}
		ratio := "-"
		if native.High != nil && native.High.P99 > 0 {
			ratio = fmt.Sprintf("%.2fx", h.P99/native.High.P99)
		}
		cells := []string{row.Name, fmt.Sprintf("%.3f", h.P50), fmt.Sprintf("%.3f", h.P99), fmt.Sprintf("%.3f", h.Max), ratio, fmt.Sprint(h.N), report.Percent(row.Kept)}
		g := row.GPU
		if g == nil {
			g = &bench.Split{}
		}
		for _, part := range []float64{g.High, g.Low, g.Switching, g.Idle} {
			cells = append(cells, report.Percent(part))
		}
		table.Add(append(cells, fmt.Sprint(row.Preemptions), fmt.Sprint(row.Held), fmt.Sprintf("%d of %d", row.Intercepted, row.Kernels))...)
	}
	return table
}
