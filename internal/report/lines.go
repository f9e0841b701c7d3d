// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Lines draws each series as a line through its points, over two linear axes from 0. The vertical
// axis ends at top, or above the highest point if top is 0. It returns nil without points.
func Lines(title, xUnit, yUnit string, top float64, xLabel, yLabel func(float64) string, series []Series) *Chart {
	series = slices.DeleteFunc(slices.Clone(series), func(s Series) bool { return len(s.Points) == 0 })
	if len(series) == 0 {
		return nil
	}
	var names, alt []string
	right, high := 0.0, 0.0
	for i := range series {
		names = append(names, series[i].Name)
		var points []string
		for _, p := range series[i].Points {
			right, high = max(right, p.X), max(high, p.Y)
			points = append(points, xLabel(p.X)+" "+yLabel(p.Y))
		}
		alt = append(alt, series[i].Name+": "+strings.Join(points, ", "))
	}
	if top <= 0 {
		step := round(max(high, 1e-9)/8, true)
		top = step * math.Ceil(high/step-1e-9)
	}
	top, right = max(top, 1e-9), max(right, 1e-9)
	draw := func(c *canvas) {
		const left = 64.0
		tall := 270.0
		if c.narrow {
			tall = 200
		}
		c.legend(left, names, func(i int, x, y float64) {
			c.path("curve "+series[i].Class, fmt.Sprintf("M%s %sh26", num(x), num(y)))
		})
		c.height += 20
		from, to := c.height+4, c.height+4+tall
		c.text(margin, from-14, "", yUnit)
		xs := scale{0, right, left, c.right(), false}
		y := func(v float64) float64 { return to - float64(tall*min(max(v/top, 0), 1)) }
		c.axis(xs, from, to, xUnit, xLabel)
		step := round(top/8, true)
		for i := 0.0; i*step <= top*(1+1e-9); i++ {
			c.line(left, y(i*step), c.right(), y(i*step), "grid")
			c.text(left-8, y(i*step)+4, "e", yLabel(i*step))
		}
		for i := range series {
			var path strings.Builder
			for k, p := range series[i].Points {
				fmt.Fprintf(&path, "%c%s %s", "ML"[min(k, 1)], num(xs.x(p.X)), num(y(p.Y)))
			}
			c.path("curve "+series[i].Class, path.String())
			for _, p := range series[i].Points {
				tip := fmt.Sprintf("%s, %s: %s", series[i].Name, xLabel(p.X), yLabel(p.Y))
				c.rect(xs.x(p.X)-2.5, y(p.Y)-2.5, 5, 5, series[i].Class, tip)
			}
		}
		c.height = to + 46
	}
	return &Chart{Title: title, Alt: strings.Join(alt, "; ") + ".", draw: draw}
}
