// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path"
	"regexp"
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

// WriteTable prints the comparison for people: first what would change for each queue, then how far the
// model is to be trusted.
func (r *ReplayResult) WriteTable(w io.Writer) error {
	var b strings.Builder
	rows := r.Queues[:min(len(r.Queues), maxRows)]
	fmt.Fprintf(&b, "%s instead of %s would have changed, by the model:\n\n", r.Policy, r.Recorded)
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "QUEUE\tPRIORITY\tLATENCY P50 ms\t\tLATENCY P99 ms\t\tGPU TIME\t")
	for i := range rows {
		q := &rows[i]
		fmt.Fprintf(tw, "%s\t%d", q.label(), q.Priority)
		for _, of := range []func(*Latency) float64{func(l *Latency) float64 { return l.P50 }, func(l *Latency) float64 { return l.P99 }} {
			if q.Demand != "open" || q.Model.Latency == nil || q.Other.Latency == nil {
				fmt.Fprint(tw, "\t-\t")
				continue
			}
			was, is := of(q.Model.Latency), of(q.Other.Latency)
			fmt.Fprintf(tw, "\t%s -> %s\t%s", short(was), short(is), times(was, is))
		}
		fmt.Fprintf(tw, "\t%.1f %% -> %.1f %%\t%s\n", 100*q.Model.GPU, 100*q.Other.GPU, times(q.Model.GPU, q.Other.GPU))
	}
	var was, is float64
	for i := range r.Queues {
		was, is = was+r.Queues[i].Model.GPU, is+r.Queues[i].Other.GPU
	}
	fmt.Fprintf(tw, "in all\t\t\t\t\t\t%.1f %% -> %.1f %%\t%s\n", 100*was, 100*is, times(was, is))
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if n := len(r.Queues) - maxRows; n > 0 {
		fmt.Fprintf(&b, "and %d more queues: see --json\n", n)
	}
	fmt.Fprintf(&b, "\nHow good the model is: what was recorded under %s, and what it makes of that.\n\n", r.Recorded)
	tw = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "QUEUE\tDEMAND\tRECORDED P50, P99 ms\tMODEL\tRECORDED GPU\tMODEL")
	for i := range rows {
		q := &rows[i]
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%.1f %%\t%.1f %%\n", q.label(), q.Demand, q.pair(&q.Recorded), q.pair(&q.Model), 100*q.Recorded.GPU, 100*q.Model.GPU)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	b.WriteString("\nEstimated, because a recording does not have it:\n")
	for _, e := range r.Estimated {
		b.WriteString(wrap(e, "  - ", 100))
	}
	text := regexp.MustCompile(` +\n`).ReplaceAllString(b.String(), "\n")
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// wrap breaks a text into lines; those after the first are indented as far as the mark in front.
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

// labelWidth is how much of a command line a table shows.
const labelWidth = 36

// label is a queue's program without its folder, and its process.
func (q *ReplayQueue) label() string {
	pid := fmt.Sprintf(" (%d)", q.PID)
	name, queue, named := strings.Cut(q.Name, pid)
	if !named {
		return q.Name
	}
	program, rest, _ := strings.Cut(name, " ")
	return shorten(strings.TrimSpace(path.Base(program)+" "+rest), labelWidth) + pid + queue
}

// pair is the latencies of requests; a queue that always has work has none.
func (q *ReplayQueue) pair(o *Outcome) string {
	if o.Latency == nil || q.Demand != "open" {
		return "-"
	}
	return short(o.Latency.P50) + ", " + short(o.Latency.P99)
}

// short is a number with three digits that count.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// times is a change, in percent while that is easy to grasp.
func times(was, is float64) string {
	switch {
	case was <= 0 || is <= 0:
		return ""
	case is >= 3*was:
		return "x" + short(is/was)
	case was >= 3*is:
		return "/" + short(was/is)
	}
	percent := math.Round(100 * (is/was - 1))
	if percent == 0 {
		return "same"
	}
	return fmt.Sprintf("%+.0f %%", percent)
}
