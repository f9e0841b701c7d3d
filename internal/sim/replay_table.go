// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes the result, indented.
func (r *ReplayResult) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write replay: %w", err)
	}
	return nil
}

// Summary says what a recording is and whether its decisions came out again, in a few lines.
func (r *Recording) Summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "recorded: %.3f s by xsched %s, %s, %s\n", r.To.Sub(r.From).Seconds(), r.Header.Program, r.Policy+" in mode "+string(r.Mode),
		plural(len(r.ordered), "queue"))
	switch {
	case r.Decisions == 0:
		fmt.Fprintln(&b, "decisions: none")
	case r.Same == r.Checked && r.Checked == r.Decisions:
		fmt.Fprintf(&b, "decisions: all %d come out again exactly\n", r.Decisions)
	default:
		fmt.Fprintf(&b, "decisions: %d of %d come out again exactly", r.Same, r.Checked)
		if n := r.Decisions - r.Checked; n > 0 {
			fmt.Fprintf(&b, "; %d more are after a gap and can't be compared", n)
		}
		b.WriteByte('\n')
		if r.FirstOther != "" {
			fmt.Fprintf(&b, "first difference: %s\n", r.FirstOther)
		}
	}
	if r.Gaps > 0 {
		fmt.Fprintf(&b, "gaps: %d, at least %d records are missing\n", r.Gaps, r.Lost)
	}
	if r.TruncatedBytes > 0 {
		fmt.Fprintf(&b, "the recording was cut off: its last %d bytes are no whole record\n", r.TruncatedBytes)
	}
	return b.String()
}

// maxRows is how many queues a table shows; JSON has all.
const maxRows = 40

// WriteTable prints the comparison for people.
func (r *ReplayResult) WriteTable(w io.Writer) error {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "\t\t\trecorded\t\t\tmodel, %s\t\t\tmodel, %s\t\t\tdifference\t\t\t\n", r.Recorded, r.Policy)
	fmt.Fprintln(tw, "queue\tpriority\tdemand\tP50 ms\tP99 ms\tGPU\tP50 ms\tP99 ms\tGPU\tP50 ms\tP99 ms\tGPU\tP50\tP99\tGPU\t")
	for i := range r.Queues[:min(len(r.Queues), maxRows)] {
		q := &r.Queues[i]
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", q.Name, q.Priority, q.Demand, q.Recorded.columns(), q.Model.columns(), q.Other.columns(),
			change(q.Model.Latency, q.Other.Latency, func(l *Latency) float64 { return l.P50 }),
			change(q.Model.Latency, q.Other.Latency, func(l *Latency) float64 { return l.P99 }), percent(q.Model.GPU, q.Other.GPU))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if n := len(r.Queues) - maxRows; n > 0 {
		fmt.Fprintf(&b, "and %d more queues: see --json\n", n)
	}
	b.WriteString("\nThe difference is between the two models; how far the first one is from what was recorded says how good it is.\nEstimated:\n")
	for _, e := range r.Estimated {
		fmt.Fprintf(&b, "  - %s\n", e)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

func (o *Outcome) columns() string {
	if o.Latency == nil {
		return fmt.Sprintf("-\t-\t%.1f %%", 100*o.GPU)
	}
	return fmt.Sprintf("%.3f\t%.3f\t%.1f %%", o.Latency.P50, o.Latency.P99, 100*o.GPU)
}

func change(a, b *Latency, of func(*Latency) float64) string {
	if a == nil || b == nil {
		return "-"
	}
	return percent(of(a), of(b))
}

func percent(a, b float64) string {
	if a == 0 {
		return "-"
	}
	return fmt.Sprintf("%+.0f %%", 100*(b/a-1))
}
