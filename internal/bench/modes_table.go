// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes the comparison, indented.
func (m *Modes) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(m); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// WriteTable prints the comparison for people.
func (m *Modes) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s%s\n", m.Device, m.Machine.text(), m.Date.Format(", 2006-01-02 15:04 MST"))
	fmt.Fprintf(&b, "one program: %g requests a second of %s, and in another process %s kernels back to back; policy %s; order seed %d\n\n",
		m.Workload.HighRate, usText(m.Workload.HighUS), usText(m.Workload.LowUS), m.Policy, m.Seed)
	native := m.Rows[0]
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "scheduler\tP50 ms\tP99 ms\tmax ms\tP99/native\tn\tlow kept\thigh\tlow\tswitch\tidle\tpreempted\theld\tintercepted\t")
	for _, row := range m.Rows {
		h := row.High
		if h == nil {
			h = &Latency{}
		}
		ratio := "-"
		if native.High != nil && native.High.P99 > 0 {
			ratio = fmt.Sprintf("%.2fx", h.P99/native.High.P99)
		}
		g := row.GPU
		if g == nil {
			g = &Split{}
		}
		fmt.Fprintf(tw, "%s\t%.3f\t%.3f\t%.3f\t%s\t%d\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%d\t%d\t%d of %d\t\n", row.Name, h.P50, h.P99, h.Max, ratio, h.N,
			100*row.Kept, 100*g.High, 100*g.Low, 100*g.Switching, 100*g.Idle, row.Preemptions, row.Held, row.Intercepted, row.Kernels)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
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
