// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"fmt"
	"math"
	"strings"

	"xsched/internal/chart"
)

// maxLanes queues are drawn; a process rarely has more that do anything.
const maxLanes = 16

// curve is a distribution to draw beside others.
type curve struct {
	name  string
	class string
	d     *Distribution
}

// distributionChart draws each distribution as a row of bars over a shared log
// axis, each row scaled to its highest bar.
func distributionChart(title, unit string, label func(float64) string, rows []curve) *chart.Chart {
	const row, gap = 66.0, 12.0
	c := &chart.Chart{Width: 860, Left: 150, Top: 6, Right: 846, XLabel: unit, Title: title}
	lo, hi := math.Inf(1), 0.0
	n := 0
	for _, r := range rows {
		if r.d == nil || len(r.d.Buckets) == 0 {
			continue
		}
		n++
		lo, hi = min(lo, float64(max(r.d.Min, 1))), max(hi, float64(r.d.Max))
	}
	if n == 0 {
		return nil
	}
	c.Bottom = c.Top + float64(n)*(row+gap)
	c.Height = c.Bottom + 46
	xs := chart.NewLogScale(lo, hi+1, c.Left, c.Right)
	c.XTicks = xs.Ticks(label)
	i := 0
	for _, r := range rows {
		if r.d == nil || len(r.d.Buckets) == 0 {
			continue
		}
		base := c.Top + float64(i)*(row+gap) + row + gap/2
		i++
		c.Marks = append(c.Marks, chart.Mark{X: c.Left - 10, Y: base - 4, Anchor: "end", Class: "lane", Text: r.name})
		c.YTicks = append(c.YTicks, chart.Tick{Pos: base})
		top := uint64(1)
		for _, b := range r.d.Buckets {
			top = max(top, b.Count)
		}
		for _, b := range r.d.Buckets {
			from, to := xs.X(math.Max(float64(b.From), 0.7)), xs.X(float64(b.To))
			h := max((row-14)*float64(b.Count)/float64(top), 1.5) // one lonely kernel must still be seen
			c.Bars = append(c.Bars, chart.Bar{
				X: from, Y: base - h, W: max(to-from-0.6, 0.8), H: h, Class: r.class,
				Tip: fmt.Sprintf("%s to %s: %s of %s", label(float64(b.From)), label(float64(b.To)), count(b.Count), count(r.d.Count)),
			})
		}
		x := xs.X(r.d.P99)
		anchor, dx := "start", 5.0
		if x > c.Right-90 {
			anchor, dx = "end", -5
		}
		c.Bars = append(c.Bars, chart.Bar{X: x - 0.75, Y: base - row, W: 1.5, H: row, Class: "p99", Tip: "P99 " + label(r.d.P99)})
		c.Marks = append(c.Marks, chart.Mark{X: x + dx, Y: base - row + 10, Anchor: anchor, Class: "note", Text: "P99 " + label(r.d.P99)})
	}
	return c
}

// lane is a row of the picture over time.
type lane struct {
	name  string
	class string
	line  *Timeline
}

// timeChart draws a row per lane: how many kernels were submitted, or how many
// packets waited, over time. Times are from the start of the first.
func timeChart(title string, lanes []lane, value func(*Timeline, int) float64, tip func(float64) string) *chart.Chart {
	const row, gap = 30.0, 8.0
	var shown []lane
	start, end := uint64(math.MaxUint64), uint64(0)
	for _, l := range lanes {
		if l.line == nil || len(shown) == maxLanes {
			continue
		}
		shown = append(shown, l)
		start, end = min(start, l.line.StartUS), max(end, l.line.StartUS+l.line.BinUS*uint64(len(l.line.Kernels)))
	}
	if len(shown) == 0 || end <= start {
		return nil
	}
	c := &chart.Chart{Width: 860, Left: 150, Top: 4, Right: 846, XLabel: "time since the first kernel", Title: title}
	c.Bottom = c.Top + float64(len(shown))*(row+gap)
	c.Height = c.Bottom + 46
	span := float64(end - start)
	x := func(us float64) float64 { return c.Left + (c.Right-c.Left)*us/span }
	c.XTicks = chart.LinearTicks(0, span, 9, x, microseconds)
	for i, l := range shown {
		base := c.Top + float64(i)*(row+gap) + row + gap/2
		top := 0.0
		for k := range l.line.Kernels {
			top = max(top, value(l.line, k))
		}
		c.Marks = append(c.Marks, chart.Mark{X: c.Left - 10, Y: base - 12, Anchor: "end", Class: "lane", Text: l.name},
			chart.Mark{X: c.Left - 10, Y: base, Anchor: "end", Class: "scale", Text: "max " + tip(top)})
		c.YTicks = append(c.YTicks, chart.Tick{Pos: base})
		if top <= 0 {
			continue
		}
		var p strings.Builder
		fmt.Fprintf(&p, "M%s %s", chart.Num(x(float64(l.line.StartUS-start))), chart.Num(base))
		for k := range l.line.Kernels {
			to := x(float64(l.line.StartUS-start) + float64(uint64(k+1)*l.line.BinUS))
			fmt.Fprintf(&p, "V%sH%s", chart.Num(base-row*max(value(l.line, k), 0)/top), chart.Num(to))
		}
		fmt.Fprintf(&p, "V%sZ", chart.Num(base))
		c.Lines = append(c.Lines, chart.Line{Class: "area " + l.class, Path: p.String()})
	}
	return c
}

// topChart draws the most frequent of something as bars with their names.
func topChart(title string, names []string, counts []uint64, total uint64) *chart.Chart {
	const row, gap = 18.0, 8.0
	if len(names) == 0 {
		return nil
	}
	c := &chart.Chart{Width: 860, Left: 10, Top: 2, Right: 846, Title: title}
	top := uint64(1)
	for _, n := range counts {
		top = max(top, n)
	}
	y := c.Top
	for i, name := range names {
		c.Marks = append(c.Marks, chart.Mark{X: c.Left, Y: y + 12, Anchor: "start", Class: "lane", Text: shorten(name, 110)})
		y += 17
		w := max(float64(counts[i])/float64(top)*(c.Right-c.Left-150), 1)
		c.Bars = append(c.Bars, chart.Bar{X: c.Left, Y: y, W: w, H: row - 8, Class: "c0", Tip: name})
		c.Marks = append(c.Marks, chart.Mark{
			X: c.Left + w + 8, Y: y + 9, Anchor: "start", Class: "note",
			Text: fmt.Sprintf("%s · %.1f %%", count(counts[i]), 100*float64(counts[i])/float64(max(total, 1))),
		})
		y += row - 8 + gap
	}
	c.Bottom = y
	c.Height = y + 4
	return c
}
