// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"time"

	"xsched/internal/chart"
)

// timelineChart draws who had the GPU in a short window of one mode: a lane a
// tenant and one for the switches between them. lanes are the tenants in
// order, the high one first.
func timelineChart(s *Scenario, mode string, lanes []lane) (chart.Chart, bool) {
	raw := s.raw[mode]
	if raw == nil || raw.span <= 0 {
		return chart.Chart{}, false
	}
	const row, gap = 16.0, 4.0
	c := chart.Chart{
		Width: 860, Left: 100, Top: 4, Right: 846,
		Title: fmt.Sprintf("Who had the GPU, %s, %s", s.Name, mode),
	}
	c.Bottom = c.Top + float64(len(lanes)+1)*(row+gap)
	c.Height = c.Bottom + 22
	x := func(t int64) float64 {
		return c.Left + (c.Right-c.Left)*float64(t-raw.from)/float64(raw.span)
	}
	y := func(i int) float64 { return c.Top + float64(i)*(row+gap) + gap/2 }
	of := map[int]int{}
	for i, l := range lanes {
		of[l.pid] = i
		c.Marks = append(c.Marks, chart.Mark{X: c.Left - 10, Y: y(i) + row - 4, Anchor: "end", Class: "lane", Text: l.name})
		c.YTicks = append(c.YTicks, chart.Tick{Pos: y(i) + row + gap/2})
	}
	c.Marks = append(c.Marks, chart.Mark{X: c.Left - 10, Y: y(len(lanes)) + row - 4, Anchor: "end", Class: "lane", Text: "switch"})
	c.YTicks = append(c.YTicks, chart.Tick{Pos: y(len(lanes)) + row + gap/2})
	for _, seg := range raw.window {
		i, cl, what := len(lanes), "gpu-switching", "switch"
		if !seg.Switch {
			k, known := of[seg.PID]
			if !known {
				continue
			}
			i, cl, what = k, "gpu-low", lanes[k].name
			if k == 0 {
				cl = "gpu-high"
			}
		}
		// A 90 us kernel in 100 ms is less than a pixel: it gets one.
		w := max(x(seg.To)-x(seg.From), 1)
		if i > 0 && cl == "gpu-low" {
			w = max(x(seg.To)-x(seg.From), 0.4)
		}
		c.Bars = append(c.Bars, chart.Bar{
			X: x(seg.From), Y: y(i), W: w, H: row, Class: cl,
			Tip: fmt.Sprintf("%s %.3f ms", what, ms(time.Duration(seg.To-seg.From))),
		})
	}
	step := raw.span / 10
	for i := range 11 {
		t := time.Duration(i) * step
		c.XTicks = append(c.XTicks, chart.Tick{Pos: x(raw.from + int64(t)), Label: fmt.Sprintf("%g ms", ms(t))})
	}
	return c, true
}

// lane is a tenant in a timeline.
type lane struct {
	name string
	pid  int
}
