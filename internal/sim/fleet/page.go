// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"xsched/internal/report"
)

// classOf returns the colour of a way of sharing, as in the other reports.
func classOf(how Sharing) string {
	return report.ModeClass(map[Sharing]string{Exclusive: "alone", TimeSlicing: "native", MPS: "mps", XSched: "xsched"}[how], 0)
}

// Of returns the need under a way of sharing; nil if it was not compared.
func (s *Study) Of(how Sharing) *Need {
	i := slices.IndexFunc(s.Needs, func(n Need) bool { return n.Sharing == how })
	if i < 0 {
		return nil
	}
	return &s.Needs[i]
}

// Table returns one row for each way of sharing.
func (s *Study) Table() *report.Table {
	t := &report.Table{Head: []string{"mode", "GPUs", "of exclusive", "kept", "GPU busy", "worst P99/target", "job wait P50", "P95", "stretch", "lost by sharing", "evicted", "rule"}, Left: 1}
	exclusive := s.Of(Exclusive)
	for i := range s.Needs {
		n := &s.Needs[i]
		if n.Result == nil {
			t.Add(string(n.Sharing), fmt.Sprintf("> %d", s.GPUs), "-", "no", "-", "-", "-", "-", "-", "-", "-", "-")
			continue
		}
		r, part, kept, worst := n.Result, "-", "yes", "saturated"
		if exclusive != nil && exclusive.GPUs > 0 {
			part = report.RoundPercent(float64(n.GPUs) / float64(exclusive.GPUs))
		}
		if !r.Kept() {
			kept = "no"
		}
		if r.WorstP99 >= 0 {
			worst = strconv.FormatFloat(r.WorstP99, 'f', 2, 64)
		}
		t.Add(string(n.Sharing), strconv.Itoa(n.GPUs), part, kept, report.Percent(r.Busy), worst, wait(r.WaitP50), wait(r.WaitP95),
			strconv.FormatFloat(r.Stretch, 'f', 2, 64), report.Percent(r.Cost), strconv.Itoa(r.Evictions), n.Rule)
	}
	return t
}

// wait formats seconds.
func wait(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

func (s *Study) head() string {
	text := fmt.Sprintf("simulated: %s, %d pods in %g h, ", s.Source, s.Pods, s.Hours)
	if text += s.Kinds; s.Kinds == "" {
		text += fmt.Sprintf("nodes of %d GPUs with %d GiB", s.PerGPU, s.Memory)
	}
	if s.Seed > 0 {
		text += fmt.Sprintf(", seed %d", s.Seed)
	}
	return text
}

// WriteText writes the table.
func (s *Study) WriteText(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s\n%s\n\n", s.head(), s.Headline()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return s.Table().WriteText(w, "")
}

// Headline states the result in one sentence.
func (s *Study) Headline() string {
	ours, alone := s.Of(XSched), s.Of(Exclusive)
	switch {
	case ours == nil || ours.GPUs == 0 || alone == nil:
		return "GPUs needed with every service within its latency target"
	case alone.GPUs == 0:
		return fmt.Sprintf("XSched needs %d GPUs, exclusive GPUs more than %d", ours.GPUs, s.GPUs)
	case ours.GPUs == alone.GPUs:
		return fmt.Sprintf("XSched needs as many GPUs as exclusive use: %d", ours.GPUs)
	}
	return fmt.Sprintf("XSched needs %d GPUs where exclusive use needs %d: %s", ours.GPUs, alone.GPUs, report.RoundPercent(float64(ours.GPUs)/float64(alone.GPUs)))
}

func hours(v float64) string { return report.Plain(v) + " h" }

// Charts returns the pictures of the study.
func (s *Study) Charts() []*report.Chart {
	var needs, cost []report.Row
	var busy, sweep []report.Series
	var waits []report.Curve
	most := 1.0
	for i := range s.Needs {
		n := &s.Needs[i]
		class := classOf(n.Sharing)
		line := report.Series{Name: string(n.Sharing), Class: class}
		for _, p := range s.Sweep {
			if p.GPUs[n.Sharing] > 0 {
				line.Points = append(line.Points, report.Point{X: p.Load, Y: float64(p.GPUs[n.Sharing])})
			}
		}
		sweep = append(sweep, line)
		if n.Result == nil {
			continue
		}
		most = max(most, float64(n.GPUs))
		needs = append(needs, report.Row{Name: string(n.Sharing), Class: class, Parts: []report.Part{{Value: float64(n.GPUs), Class: class, Name: string(n.Sharing)}}})
		cost = append(cost, report.Row{Name: string(n.Sharing), Class: class, Parts: []report.Part{{Value: n.Result.Cost, Class: class, Name: string(n.Sharing)}}})
		day := report.Series{Name: string(n.Sharing), Class: class}
		for hour, v := range n.Result.BusyByHour {
			day.Points = append(day.Points, report.Point{X: float64(hour) + 0.5, Y: v})
		}
		busy = append(busy, day)
		curve := report.Curve{Name: string(n.Sharing), Class: class}
		for _, v := range n.Result.waits {
			curve.Values = append(curve.Values, max(v/60, 0.1)) // a logarithmic axis has no 0
		}
		if len(curve.Values) > 0 {
			waits = append(waits, curve)
		}
	}
	var out []*report.Chart
	add := func(c *report.Chart) {
		if c != nil {
			out = append(out, c)
		}
	}
	if len(s.Sweep) > 1 {
		add(report.Lines("GPUs needed against load", "load, relative to "+s.Source, "GPUs", 0, report.Plain, report.Count, sweep))
	} else {
		add(report.Bars("GPUs needed", "GPUs", 0, most*1.15, false, report.Count, needs))
	}
	add(report.Lines("GPU busy over the day, on the smallest fleet of each mode", "hour of the day", "part of all GPU time", 1, hours, report.WholePercent, busy))
	add(report.CDF("Time that jobs wait for GPUs", "minutes (log; 0.1 stands for less)", waits))
	add(report.Bars("GPU time lost by sharing, of what services leave to jobs beside them", "", 0, 0.5, false, report.Percent, cost))
	return out
}

// WriteHTML writes the self-contained page.
func (s *Study) WriteHTML(w io.Writer) error {
	p := report.Page{Title: "Fleet: " + s.Source, Headline: s.Headline()}
	p.Add(report.Block{
		Text: s.About, Soft: s.head(),
		Notice: "Simulated: the outcome of each GPU's tenants is tabulated with XSched's own engine on a model of an H200; arrivals and placement are a model of a cluster.",
	})
	charts := s.Charts()
	first := min(1, len(charts))
	for _, c := range charts[:first] {
		p.AddChart(c, "Each fleet keeps every service's P99 within its target and ends 95 % of jobs in time.")
	}
	p.Add(report.Block{Heading: "All modes", Table: s.Table()})
	for _, c := range charts[first:] {
		p.AddChart(c, "")
	}
	return p.Write(w)
}
