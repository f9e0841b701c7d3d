// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes the result, indented.
func (r *Result) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// head says what was simulated, in one line.
func (r *Result) head() string {
	return fmt.Sprintf("simulated: %s, %s on %s, %g s (%g s warm-up left out), seed %d",
		r.Scenario, plural(r.Tenants, "tenant"), plural(r.Devices, "GPU"), r.DurationS, r.WarmupS, r.Seed)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// WriteTable prints the comparison for people.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintln(&b, r.head())
	if r.About != "" {
		fmt.Fprintln(&b, strings.Join(strings.Fields(r.About), " "))
	}
	b.WriteByte('\n')
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "policy\ttenant\tn\tP50 ms\tP99 ms\tmax ms\tP99/alone\trequests/s\tunfinished\tlate\tkept\tGPU each (least..most)\t")
	for i := range r.Runs {
		run := &r.Runs[i]
		for j := range run.Classes {
			name := ""
			if j == 0 {
				name = run.Name
			}
			fmt.Fprintf(tw, "%s\t%s\t\n", name, run.Classes[j].columns())
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	b.WriteByte('\n')
	tw = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "policy\tGPU busy\tswitching\tidle\tswitches\tdecisions\tstops\tyields\tgrants\t")
	for i := range r.Runs {
		run := &r.Runs[i]
		e := &run.Engine
		fmt.Fprintf(tw, "%s\t%.1f %%\t%.1f %%\t%.1f %%\t%d\t%d\t%d\t%d\t%d\t\n", run.Name, 100*run.GPU.Run, 100*run.GPU.Switch,
			100*run.GPU.Idle, run.GPU.Switches, e.Decisions, e.Preemptions, e.Yields, e.Grants)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

func (c *Class) columns() string {
	latency := "-\t-\t-\t-"
	if c.Latency != nil {
		ratio := "-"
		if c.Alone != nil && c.Alone.P99 > 0 {
			ratio = fmt.Sprintf("%.2fx", c.Latency.P99/c.Alone.P99)
		}
		latency = fmt.Sprintf("%.3f\t%.3f\t%.3f\t%s", c.Latency.P50, c.Latency.P99, c.Latency.Max, ratio)
	}
	late := "-"
	if c.Late != nil {
		late = fmt.Sprintf("%.2f %%", 100**c.Late)
	}
	return fmt.Sprintf("%s\t%d\t%s\t%.1f\t%d\t%s\t%.1f %%\t%.1f..%.1f %%", c.Name, c.Count, latency, c.Rate, c.Unfinished, late,
		100*c.Kept, 100*c.Least, 100*c.Most)
}

// WriteCSV writes one line for each policy and tenant.
func (r *Result) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	rows := [][]string{{
		"scenario", "seed", "policy", "mode", "tenant", "count", "priority", "p50_ms", "p95_ms", "p99_ms", "max_ms", "mean_ms", "n",
		"wait_p50_ms", "wait_p99_ms", "alone_p50_ms", "alone_p99_ms", "offered", "done", "rate_hz", "late", "gpu_devices", "kept", "least", "most", "preemptions",
	}}
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', 8, 64) }
	for i := range r.Runs {
		run := &r.Runs[i]
		for j := range run.Classes {
			c := &run.Classes[j]
			l, wait, alone := orNone(c.Latency), orNone(c.Wait), orNone(c.Alone)
			late := ""
			if c.Late != nil {
				late = f(*c.Late)
			}
			rows = append(rows, []string{
				r.Scenario, strconv.FormatUint(r.Seed, 10), run.Name, string(run.Mode), c.Name, strconv.Itoa(c.Count), strconv.Itoa(c.Priority),
				f(l.P50), f(l.P95), f(l.P99), f(l.Max), f(l.Mean), strconv.FormatUint(l.N, 10), f(wait.P50), f(wait.P99), f(alone.P50), f(alone.P99),
				strconv.FormatUint(c.Offered, 10), strconv.FormatUint(c.Done, 10), f(c.Rate), late, f(c.GPU), f(c.Kept), f(c.Least), f(c.Most),
				strconv.FormatUint(c.Preemptions, 10),
			})
		}
	}
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

func orNone(l *Latency) Latency {
	if l == nil {
		return Latency{}
	}
	return *l
}
