// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"xsched/internal/chart"
)

// scaleOf is the latency axis that covers all samples, in milliseconds.
func scaleOf(all [][]time.Duration, left, right float64) chart.LogScale {
	lo, hi := math.Inf(1), 0.0
	for _, d := range all {
		if len(d) > 0 {
			lo, hi = min(lo, ms(d[0])), max(hi, ms(d[len(d)-1]))
		}
	}
	return chart.NewLogScale(lo, hi, left, right)
}

func msLabel(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }

// cdfChart draws the part of the requests that took at most x, per mode. The
// y axis is stretched towards 100 %, because the tail is what matters: it is
// the logarithm of what is missing to 100 %.
func cdfChart(s *Scenario) chart.Chart {
	c := chart.Chart{
		Width: 860, Height: 330, Left: 58, Top: 12, Right: 846, Bottom: 284,
		XLabel: "latency of a request, ms (log)",
		Title:  "Latency distribution of the high tenant, " + s.Name,
	}
	var all [][]time.Duration
	n := 0
	for _, name := range s.modes() {
		all = append(all, s.samples(name))
		n = max(n, len(s.samples(name)))
	}
	xs := scaleOf(all, c.Left, c.Right)
	c.XTicks = xs.Ticks(msLabel)
	// The last step stands for 1 in n.
	depth := math.Log10(float64(max(n, 100)) * 2)
	y := func(p float64) float64 { // p = part still missing
		return c.Bottom + (c.Top-c.Bottom)*min(-math.Log10(max(p, 1e-9))/depth, 1)
	}
	for _, q := range []struct {
		missing float64
		label   string
	}{{1, "0 %"}, {0.5, "50 %"}, {0.1, "90 %"}, {0.05, "95 %"}, {0.01, "99 %"}, {0.001, "99.9 %"}, {0.0001, "99.99 %"}} {
		if -math.Log10(q.missing) <= depth {
			c.YTicks = append(c.YTicks, chart.Tick{Pos: y(q.missing), Label: q.label})
		}
	}
	for _, name := range s.modes() {
		d := s.samples(name)
		if len(d) == 0 {
			continue
		}
		var p strings.Builder
		fmt.Fprintf(&p, "M%s %s", chart.Num(xs.X(ms(d[0]))), chart.Num(y(1)))
		for i, v := range d {
			// A point is dropped if the next one is at the same place on paper.
			if i > 0 && i < len(d)-1 && xs.X(ms(d[i+1]))-xs.X(ms(v)) < 0.2 && (i*200/len(d) == (i-1)*200/len(d)) && i < len(d)-100 {
				continue
			}
			missing := float64(len(d)-1-i) / float64(len(d))
			fmt.Fprintf(&p, "H%sV%s", chart.Num(xs.X(ms(v))), chart.Num(y(max(missing, 0.5/float64(len(d))))))
		}
		c.Lines = append(c.Lines, chart.Line{Class: class(name), Path: p.String()})
	}
	return c
}

// histogramChart draws one row per mode over a shared axis: bins of equal
// width on the log axis, heights as part of the mode's requests.
func histogramChart(s *Scenario) chart.Chart {
	// Above each row's bars there is room for the text at the P99 line.
	const row, gap, head, bins = 62.0, 10.0, 14.0, 96
	names := s.modes()
	c := chart.Chart{
		Width: 860, Left: 100, Top: 6, Right: 846, XLabel: "latency of a request, ms (log)",
		Title: "Histogram of the high tenant's latency, " + s.Name,
	}
	c.Bottom = c.Top + float64(len(names))*(row+gap)
	c.Height = c.Bottom + 46
	var all [][]time.Duration
	for _, name := range names {
		all = append(all, s.samples(name))
	}
	xs := scaleOf(all, c.Left, c.Right)
	c.XTicks = xs.Ticks(msLabel)
	width := (c.Right - c.Left) / bins
	for i, name := range names {
		base := c.Top + float64(i)*(row+gap) + row + gap/2
		c.Marks = append(c.Marks, chart.Mark{X: c.Left - 10, Y: base - 4, Anchor: "end", Class: "lane", Text: name})
		c.YTicks = append(c.YTicks, chart.Tick{Pos: base})
		counts := make([]int, bins)
		for _, v := range s.samples(name) {
			counts[min(int((xs.X(ms(v))-c.Left)/width), bins-1)]++
		}
		top := 1
		for _, n := range counts {
			top = max(top, n)
		}
		for b, n := range counts {
			if n == 0 {
				continue
			}
			// One lonely sample in the tail must still be seen.
			h := max((row-head)*float64(n)/float64(top), 1.5)
			c.Bars = append(c.Bars, chart.Bar{
				X: c.Left + float64(b)*width + 0.5, Y: base - h, W: width - 1, H: h, Class: class(name),
				Tip: fmt.Sprintf("%s: %d of %d requests", name, n, len(s.samples(name))),
			})
		}
		if l := s.high(name); l != nil {
			x := xs.X(l.P99)
			c.Bars = append(c.Bars, chart.Bar{X: x - 0.75, Y: base - row, W: 1.5, H: row, Class: "p99", Tip: fmt.Sprintf("P99 %.3f ms", l.P99)})
			anchor, dx := "start", 5.0
			if x > c.Right-90 {
				anchor, dx = "end", -5
			}
			c.Marks = append(c.Marks, chart.Mark{X: x + dx, Y: base - row + 10, Anchor: anchor, Class: "note", Text: fmt.Sprintf("P99 %s ms", short(l.P99))})
		}
	}
	return c
}

// splitChart draws who had the GPU, one bar per mode.
func splitChart(s *Scenario) chart.Chart {
	const row, gap = 26.0, 12.0
	c := chart.Chart{Width: 860, Left: 100, Top: 6, Right: 846, XLabel: "part of GPU time", Title: "GPU time, " + s.Name}
	n := 0
	for _, name := range s.modes() {
		g := s.Modes[name].GPU
		if g == nil {
			continue
		}
		y := c.Top + float64(n)*(row+gap) + gap/2
		n++
		c.Marks = append(c.Marks, chart.Mark{X: c.Left - 10, Y: y + row/2 + 4, Anchor: "end", Class: "lane", Text: name})
		x := c.Left
		for _, part := range []struct {
			class string
			v     float64
		}{{"high", g.High}, {"low", g.Low}, {"switching", g.Switching}, {"idle", g.Idle}} {
			w := part.v * (c.Right - c.Left)
			text := fmt.Sprintf("%.1f %%", 100*part.v)
			c.Bars = append(c.Bars, chart.Bar{X: x, Y: y, W: w, H: row, Class: "gpu-" + part.class, Tip: part.class + " " + text})
			if w > 46 {
				c.Marks = append(c.Marks, chart.Mark{X: x + w/2, Y: y + row/2 + 4, Anchor: "middle", Class: "in-" + part.class, Text: text})
			}
			x += w
		}
	}
	c.Bottom = c.Top + float64(n)*(row+gap)
	c.Height = c.Bottom + 46
	for i := 0; i <= 10; i += 2 {
		c.XTicks = append(c.XTicks, chart.Tick{Pos: c.Left + (c.Right-c.Left)*float64(i)/10, Label: fmt.Sprintf("%d %%", 10*i)})
	}
	return c
}

// class turns a mode's name into a CSS class.
func class(mode string) string { return "m-" + mode }

// short is a number with three digits that count.
func short(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func (s *Scenario) samples(mode string) []time.Duration {
	if r := s.raw[mode]; r != nil {
		return r.latencies
	}
	return nil
}
