// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
)

// Series is a set of points of one colour.
type Series struct {
	Name   string  `json:"name"`
	Class  string  `json:"class,omitempty"`
	Points []Point `json:"points"`
}

// Point is one point of a scatter chart.
type Point struct {
	X     float64 `json:"x"`
	Y     float64 `json:"y"`
	Name  string  `json:"name"`            // shown on hover
	Label string  `json:"label,omitempty"` // shown beside the point
}

// mid returns the geometric mean of X and the mean of Y.
func (s *Series) mid() (x, y float64) {
	for _, p := range s.Points {
		x += math.Log(p.X)
		y += p.Y
	}
	n := float64(len(s.Points))
	return math.Exp(x / n), y / n
}

// Scatter draws points over a logarithmic horizontal axis from 1, or the lowest value below, and a
// larger one with the name of the series at their mean. Points with a label have no mean; a line
// connects those of different series with the same label. It returns nil without points.
func Scatter(title, xUnit, yUnit string, label func(float64) string, series []Series) *Chart {
	const left, tall = 58.0, 330.0
	series = slices.DeleteFunc(slices.Clone(series), func(s Series) bool { return len(s.Points) == 0 })
	if len(series) == 0 {
		return nil
	}
	c := &Chart{Title: title}
	var names []string
	least, hi, lo, top := 1.0, 1.0, math.Inf(1), 0.0
	first := map[string]Point{}
	for i := range series {
		names = append(names, series[i].Name)
		for _, p := range series[i].Points {
			least, hi, lo, top = min(least, p.X), max(hi, p.X), min(lo, p.Y), max(top, p.Y)
		}
	}
	c.legend(left, names, func(i int, x, y float64) { c.rect(x+8, y-5, 10, 10, series[i].Class, "") })
	from, to := c.height+4, c.height+4+tall
	xs := scale{round(least, false), max(hi*1.03, 1.2), left, true}
	lo, top = math.Floor(lo*10)/10, math.Ceil(top*10)/10
	y := func(v float64) float64 { return to - float64(tall*(v-lo)/max(top-lo, 0.1)) }
	for _, v := range ticks(xs.lo, xs.hi) {
		c.line(xs.x(v), from, xs.x(v), to, "grid")
		c.text(xs.x(v), to+17, "m", Plain(v)+"x")
	}
	for v := lo; v <= top+1e-9; v += 0.1 {
		c.line(left, y(v), plotRight, y(v), "grid")
		c.text(left-8, y(v)+4, "e", label(v))
	}
	c.text(plotRight, to+36, "e", xUnit)
	c.text(14, from-8, "", yUnit)
	c.height = to + 46
	for i := range series {
		s := &series[i]
		for _, p := range s.Points {
			if from, ok := first[p.Label]; ok && p.Label != "" {
				c.line(xs.x(from.X), y(from.Y), xs.x(p.X), y(p.Y), "axis")
			} else {
				first[p.Label] = p
			}
			c.text(xs.x(p.X)+5, y(p.Y)-3, "n", p.Label)
			c.rect(xs.x(p.X)-2.5, y(p.Y)-2.5, 5, 5, s.Class, fmt.Sprintf("%s, %s: %.2fx, %s", s.Name, p.Name, p.X, label(p.Y)))
		}
	}
	var labels []float64
	for i := range series {
		s := &series[i]
		if s.Points[0].Label != "" {
			continue
		}
		x, v := s.mid()
		c.rect(xs.x(x)-6, y(v)-6, 12, 12, s.Class, fmt.Sprintf("%s, mean: %.2fx, %s", s.Name, x, label(v)))
		at := y(v) + 4
		for slices.ContainsFunc(labels, func(other float64) bool { return math.Abs(other-at) < 12 }) {
			at += 4 // below the other name
		}
		labels = append(labels, at)
		c.text(xs.x(x)+10, at, "k", s.Name)
	}
	return c
}

// ticks returns values of a ratio axis from lo, at most 1, to hi.
func ticks(lo, hi float64) []float64 {
	var out []float64
	for _, v := range []float64{0.1, 0.2, 0.5} {
		if v >= lo*(1-1e-9) {
			out = append(out, v)
		}
	}
	for _, v := range []float64{1, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 3, 5, 10, 30, 100, 300, 1000} {
		if v <= hi*(1+1e-9) && (hi <= 1.5 || v != 1.05) && (hi <= 4 || v != 1.1 && v != 1.3) && (hi <= 20 || v != 1.2 && v != 3) {
			out = append(out, v)
		}
	}
	return out
}
