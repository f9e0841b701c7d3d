// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"

	"xsched/internal/report"
)

// WriteJSON writes the result, indented.
func (r *Result) WriteJSON(w io.Writer) error { return report.WriteJSON(w, r) }

// head summarizes the simulation in one line.
func (r *Result) head() string {
	return fmt.Sprintf("simulated: %s, %s on %s, %g s (%g s warm-up left out), seed %d",
		r.Scenario, report.Plural(r.Tenants, "tenant"), report.Plural(r.Devices, "GPU"), r.DurationS, r.WarmupS, r.Seed)
}

// WriteTable writes the comparison as text.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintln(&b, r.head())
	if r.About != "" {
		fmt.Fprintln(&b, strings.Join(strings.Fields(r.About), " "))
	}
	for _, t := range r.tables() {
		b.WriteByte('\n')
		_ = t.WriteText(&b, "")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// tables are the tenants' latency and throughput, their tokens if any, and the devices' time.
func (r *Result) tables() []*report.Table {
	tenants := &report.Table{Left: 2, Head: []string{
		"policy", "tenant", "n", "P50 ms", "P99 ms", "max ms", "P99/alone", "requests/s", "unfinished", "late", "kept", "GPU each (min..max)",
	}}
	tokens := &report.Table{Left: 2, Head: []string{
		"policy", "tenant", "first token P50 ms", "P99 ms", "P99/alone", "per token P50 ms", "P99 ms", "P99/alone",
	}}
	devices := &report.Table{Left: 1, Head: []string{
		"policy", "GPU busy", "switching", "idle", "switches", "decisions", "preemptions", "yields", "grants", "lows kept", "of ideal",
	}}
	moves := &report.Table{Left: 2, Head: []string{"policy", "tenant", "moves out", "back", "GiB", "waited s", "without memory"}}
	for i := range r.Runs {
		run := &r.Runs[i]
		for j := range run.Classes {
			name := ""
			if j == 0 {
				name = run.Name
			}
			tenants.Add(append([]string{name}, run.Classes[j].columns()...)...)
			if m := run.Classes[j].Memory; m != nil {
				moves.Add(run.Name, run.Classes[j].Name, strconv.FormatUint(m.Out, 10), strconv.FormatUint(m.Back, 10),
					fmt.Sprintf("%.1f", m.GiB), fmt.Sprintf("%.1f", m.WaitedS), strconv.FormatUint(m.Failed, 10))
			}
			if c := &run.Classes[j]; c.FirstToken != nil {
				row := append([]string{run.Name, c.Name}, tokenColumns(c.FirstToken, c.AloneFirst)...)
				tokens.Add(append(row, tokenColumns(c.PerToken, c.AlonePer)...)...)
			}
		}
		e := &run.Engine
		row := []string{run.Name, report.Percent(run.GPU.Run), report.Percent(run.GPU.Switch), report.Percent(run.GPU.Idle)}
		for _, n := range []uint64{run.GPU.Switches, e.Decisions, e.Preemptions, e.Yields, e.Grants} {
			row = append(row, strconv.FormatUint(n, 10))
		}
		lows := []string{"-", "-"}
		if l := run.Lows; l != nil {
			lows = []string{report.Percent(l.Kept), report.Percent(l.OfIdeal)}
		}
		devices.Add(append(row, lows...)...)
	}
	out := []*report.Table{tenants}
	for _, t := range []*report.Table{tokens, moves} {
		if len(t.Rows) > 0 {
			out = append(out, t)
		}
	}
	return append(out, devices)
}

func tokenColumns(l, alone *report.Latency) []string {
	if l == nil {
		return []string{"-", "-", "-"}
	}
	row := []string{fmt.Sprintf("%.3f", l.P50), fmt.Sprintf("%.3f", l.P99), "-"}
	if alone != nil && alone.P99 > 0 {
		row[2] = fmt.Sprintf("%.2fx", l.P99/alone.P99)
	}
	return row
}

func (c *Class) columns() []string {
	row := []string{c.Name, strconv.Itoa(c.Count), "-", "-", "-", "-"}
	if l := c.Latency; l != nil {
		row[2], row[3], row[4] = fmt.Sprintf("%.3f", l.P50), fmt.Sprintf("%.3f", l.P99), fmt.Sprintf("%.3f", l.Max)
		if c.Alone != nil && c.Alone.P99 > 0 {
			row[5] = fmt.Sprintf("%.2fx", l.P99/c.Alone.P99)
		}
	}
	late := "-"
	if c.Late != nil {
		late = fmt.Sprintf("%.2f %%", 100**c.Late)
	}
	return append(row, fmt.Sprintf("%.1f", c.Rate), strconv.FormatUint(c.Unfinished, 10), late, report.Percent(c.Kept),
		fmt.Sprintf("%.1f..%.1f %%", 100*c.Least, 100*c.Most))
}

// WriteCSV writes one line for each policy and tenant.
func (r *Result) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	rows := [][]string{{
		"scenario", "seed", "policy", "mode", "tenant", "count", "priority", "p50_ms", "p95_ms", "p99_ms", "max_ms", "mean_ms", "n",
		"wait_p50_ms", "wait_p99_ms", "alone_p50_ms", "alone_p99_ms", "offered", "done", "rate_hz", "late", "gpu_devices", "kept", "least", "most", "preemptions",
		"first_token_p50_ms", "first_token_p99_ms", "per_token_p50_ms", "per_token_p99_ms",
	}}
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', 8, 64) }
	for i := range r.Runs {
		run := &r.Runs[i]
		for j := range run.Classes {
			c := &run.Classes[j]
			l, wait, alone := orNone(c.Latency), orNone(c.Wait), orNone(c.Alone)
			first, per := orNone(c.FirstToken), orNone(c.PerToken)
			late := ""
			if c.Late != nil {
				late = f(*c.Late)
			}
			rows = append(rows, []string{
				r.Scenario, strconv.FormatUint(r.Seed, 10), run.Name, string(run.Mode), c.Name, strconv.Itoa(c.Count), strconv.Itoa(c.Priority),
				f(l.P50), f(l.P95), f(l.P99), f(l.Max), f(l.Mean), strconv.Itoa(l.N), f(wait.P50), f(wait.P99), f(alone.P50), f(alone.P99),
				strconv.FormatUint(c.Offered, 10), strconv.FormatUint(c.Done, 10), f(c.Rate), late, f(c.GPU), f(c.Kept), f(c.Least), f(c.Most),
				strconv.FormatUint(c.Preemptions, 10), f(first.P50), f(first.P99), f(per.P50), f(per.P99),
			})
		}
	}
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

func orNone(l *report.Latency) report.Latency {
	if l == nil {
		return report.Latency{}
	}
	return *l
}
