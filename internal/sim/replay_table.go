// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io"
	"math"
	"path"
	"strconv"
	"strings"

	"xsched/internal/report"
)

// WriteJSON writes the result, indented.
func (r *ReplayResult) WriteJSON(w io.Writer) error { return report.WriteJSON(w, r) }

// Summary describes a recording and whether the engine reproduced its decisions.
func (r *Recording) Summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "recorded: %.3f s by xsched %s, %s, %s\n", r.To.Sub(r.From).Seconds(), r.Header.Program, r.Policy+" in mode "+string(r.Mode),
		report.Plural(len(r.ordered), "queue"))
	switch {
	case r.Decisions == 0:
		fmt.Fprintln(&b, "decisions: none")
	case r.Same == r.Checked && r.Checked == r.Decisions:
		fmt.Fprintf(&b, "decisions: all %d reproduced exactly\n", r.Decisions)
	default:
		fmt.Fprintf(&b, "decisions: %d of %d reproduced exactly", r.Same, r.Checked)
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
	if r.Truncated {
		b.WriteString("truncated: the recording ends within a record\n")
	}
	return b.String()
}

// maxRows limits the queues of a table; the JSON has all.
const maxRows = 40

// WriteTable writes the comparison as text: first the change for each queue, then the accuracy of
// the model.
func (r *ReplayResult) WriteTable(w io.Writer) error {
	change := report.Table{Left: 2, Head: []string{"queue", "priority", "latency P50 ms", "", "latency P99 ms", "", "GPU time", ""}}
	model := report.Table{Left: 2, Head: []string{"queue", "demand", "recorded P50, P99 ms", "model", "recorded GPU", "model"}}
	arrow := func(was, is float64, text func(float64) string) []string {
		return []string{text(was) + " -> " + text(is), times(was, is)}
	}
	var was, is float64
	for i := range r.Queues {
		q := &r.Queues[i]
		was, is = was+q.Model.GPU, is+q.Other.GPU
		if i >= maxRows {
			continue
		}
		row := []string{q.label(), strconv.Itoa(q.Priority)}
		if a, b := q.Model.Latency, q.Other.Latency; q.Demand == "open" && a != nil && b != nil {
			row = append(append(row, arrow(a.P50, b.P50, report.Short)...), arrow(a.P99, b.P99, report.Short)...)
		} else {
			row = append(row, "-", "", "-", "")
		}
		change.Add(append(row, arrow(q.Model.GPU, q.Other.GPU, report.Percent)...)...)
		model.Add(q.label(), q.Demand, q.pair(&q.Recorded), q.pair(&q.Model), report.Percent(q.Recorded.GPU), report.Percent(q.Model.GPU))
	}
	change.Add(append([]string{"all", "", "", "", "", ""}, arrow(was, is, report.Percent)...)...)
	var b strings.Builder
	fmt.Fprintf(&b, "%s instead of %s would have changed, according to the model:\n\n", r.Policy, r.Recorded)
	_ = change.WriteText(&b, "")
	if n := len(r.Queues) - maxRows; n > 0 {
		fmt.Fprintf(&b, "and %d more queues: see --json\n", n)
	}
	fmt.Fprintf(&b, "\nAccuracy of the model: what was recorded under %s, and the model's result for it.\n\n", r.Recorded)
	_ = model.WriteText(&b, "")
	b.WriteString("\nEstimated, because a recording does not contain it:\n")
	for _, e := range r.Estimated {
		b.WriteString(wrap(e, "  - ", 100))
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// wrap breaks a text into lines and indents continuation lines by the width of the mark.
func wrap(text, mark string, width int) string {
	var b strings.Builder
	b.WriteString(mark)
	at := len(mark)
	for i, word := range strings.Fields(text) {
		switch {
		case i > 0 && at+1+len(word) > width:
			b.WriteString("\n" + strings.Repeat(" ", len(mark)))
			at = len(mark)
		case i > 0:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	b.WriteByte('\n')
	return b.String()
}

// labelWidth limits the command line in a table.
const labelWidth = 36

// label returns a queue's program, without its folder, and its PID.
func (q *ReplayQueue) label() string {
	pid := fmt.Sprintf(" (%d)", q.PID)
	name, queue, named := strings.Cut(q.Name, pid)
	if !named {
		return q.Name
	}
	program, rest, _ := strings.Cut(name, " ")
	return report.Shorten(strings.TrimSpace(path.Base(program)+" "+rest), labelWidth) + pid + queue
}

// pair returns P50 and P99 of requests, or "-" for closed demand.
func (q *ReplayQueue) pair(o *Outcome) string {
	if o.Latency == nil || q.Demand != "open" {
		return "-"
	}
	return report.Short(o.Latency.P50) + ", " + report.Short(o.Latency.P99)
}

// times formats a change: in percent, or from 3x as a factor.
func times(was, is float64) string {
	switch {
	case was <= 0 || is <= 0:
		return ""
	case is >= 3*was:
		return "x" + report.Short(is/was)
	case was >= 3*is:
		return "/" + report.Short(was/is)
	}
	percent := math.Round(100 * (is/was - 1))
	if percent == 0 {
		return "same"
	}
	return fmt.Sprintf("%+.0f %%", percent)
}
