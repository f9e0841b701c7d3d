// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
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
	Label string  `json:"label,omitempty"` // shown next to the point
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

// Scatter draws points over a logarithmic horizontal axis of ratios from 1, or the lowest value below,
// and a larger one with the name of the series at their mean. Points with a label have no mean; a line
// connects those of different series with the same label. It returns nil without points.
func Scatter(title, xUnit, yUnit string, label func(float64) string, series []Series) *Chart {
	series = slices.DeleteFunc(slices.Clone(series), func(s Series) bool { return len(s.Points) == 0 })
	if len(series) == 0 {
		return nil
	}
	var names, alt []string
	least, hi, lo, top := 1.0, 1.0, math.Inf(1), 0.0
	for i := range series {
		names = append(names, series[i].Name)
		for _, p := range series[i].Points {
			least, hi, lo, top = min(least, p.X), max(hi, p.X), min(lo, p.Y), max(top, p.Y)
		}
		x, y := series[i].mid()
		alt = append(alt, fmt.Sprintf("%s: %.2fx, %s", series[i].Name, x, label(y)))
	}
	lo, top = math.Floor(lo*10)/10, math.Ceil(top*10)/10
	draw := func(c *canvas) {
		const left = 58.0
		tall := 330.0
		if c.narrow {
			tall = 250
		}
		c.legend(left, names, func(i int, x, y float64) { c.rect(x+8, y-5, 10, 10, series[i].Class, "") })
		c.height += 20
		from, to := c.height+4, c.height+4+tall
		xs := scale{round(least, false), max(hi*1.03, 1.2), left, c.right(), true}
		y := func(v float64) float64 { return to - float64(tall*(v-lo)/max(top-lo, 0.1)) }
		free := 0.0
		for _, v := range ticks(xs.lo, xs.hi) {
			c.line(xs.x(v), from, xs.x(v), to, "grid")
			text := Plain(v) + "x"
			if half := width(text) / 2; xs.x(v)-half >= free {
				c.text(xs.x(v), to+17, "m", text)
				free = xs.x(v) + half
			}
		}
		for v := lo; v <= top+1e-9; v += 0.1 {
			c.line(left, y(v), c.right(), y(v), "grid")
			c.text(left-8, y(v)+4, "e", label(v))
		}
		c.text(c.right(), to+36, "e", xUnit)
		c.text(margin, from-14, "", yUnit)
		c.height = to + 46
		c.points(series, xs, y, label)
		c.means(series, xs, y, label)
	}
	return &Chart{Title: title, Alt: strings.Join(alt, "; ") + ".", draw: draw}
}

func (c *canvas) points(series []Series, xs scale, y func(float64) float64, label func(float64) string) {
	first := map[string]Point{}
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
}

// means draws the mean of each series with its name.
func (c *canvas) means(series []Series, xs scale, y func(float64) float64, label func(float64) string) {
	type box struct{ from, to, at float64 }
	var labels []box
	for i := range series {
		s := &series[i]
		if s.Points[0].Label != "" {
			continue
		}
		x, v := s.mid()
		c.rect(xs.x(x)-6, y(v)-6, 12, 12, s.Class, fmt.Sprintf("%s, mean: %.2fx, %s", s.Name, x, label(v)))
		l, class := box{xs.x(x) + 10, xs.x(x) + 10 + width(s.Name), y(v) + 4}, "k"
		if l.to > c.width {
			l.from, l.to, class = xs.x(x)-10-width(s.Name), xs.x(x)-10, "k e"
		}
		overlaps := func(o box) bool { return l.from < o.to && o.from < l.to && math.Abs(o.at-l.at) < 12 }
		for slices.ContainsFunc(labels, overlaps) {
			l.at += 4 // below the other name
		}
		labels = append(labels, l)
		if class == "k" {
			c.text(l.from, l.at, class, s.Name)
		} else {
			c.text(l.to, l.at, class, s.Name)
		}
	}
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
