// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Curve is a set of samples with its name.
type Curve struct {
	Name   string    `json:"name"`
	Class  string    `json:"class,omitempty"`
	Values []float64 `json:"values"` // ascending
}

// Plain formats a number for an axis.
func Plain(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// CDF draws the cumulative distribution of each curve over a logarithmic axis. The vertical axis is
// the logarithm of what is missing to 100 %, because the tail matters most. The legend has the P99.
// It returns nil without samples.
func CDF(title, unit string, curves []Curve) *Chart {
	lo, hi, n := math.Inf(1), 0.0, 100
	var names, alt []string
	for _, v := range curves {
		names = append(names, fmt.Sprintf("%s, P99 %s", v.Name, Short(Quantile(v.Values, 0.99))))
		if len(v.Values) > 0 {
			lo, hi, n = min(lo, v.Values[0]), max(hi, v.Values[len(v.Values)-1]), max(n, len(v.Values))
			alt = append(alt, fmt.Sprintf("%s: P50 %s, P99 %s", v.Name, Short(Quantile(v.Values, 0.5)), Short(Quantile(v.Values, 0.99))))
		}
	}
	if len(alt) == 0 {
		return nil
	}
	draw := func(c *canvas) {
		const left, tall = 58.0, 270.0
		c.legend(left, names, func(i int, x, y float64) {
			c.path("curve "+curves[i].Class, fmt.Sprintf("M%s %sh26", num(x), num(y)))
		})
		top, bottom := c.height+4, c.height+4+tall
		c.height = bottom + 44
		xs := logScale(lo, hi, left, c.right())
		c.axis(xs, top, bottom, unit, Plain)
		depth := math.Log10(2 * float64(n))
		y := func(missing float64) float64 {
			return bottom - float64(tall*min(-math.Log10(max(missing, 1e-9))/depth, 1))
		}
		for _, missing := range []float64{1, 0.5, 0.1, 0.05, 0.01, 0.001, 0.0001} {
			if -math.Log10(missing) <= depth {
				c.line(left, y(missing), c.right(), y(missing), "grid")
				c.text(left-8, y(missing)+4, "e", strconv.FormatFloat(100*(1-missing), 'g', 6, 64)+" %")
			}
		}
		for _, v := range curves {
			c.path("curve "+v.Class, steps(v.Values, xs, y))
		}
	}
	return &Chart{Title: title, Alt: strings.Join(alt, "; ") + ".", draw: draw}
}

// steps returns the path of a cumulative distribution. Of samples that fall on the same place, it
// has only the last one.
func steps(values []float64, xs scale, y func(missing float64) float64) string {
	var p strings.Builder
	last := math.Inf(-1)
	for i, value := range values {
		x := xs.x(value)
		if x < last+0.3 && i+1 < len(values) && xs.x(values[i+1]) < last+0.3 {
			continue
		}
		if i == 0 {
			fmt.Fprintf(&p, "M%s %s", num(x), num(y(1)))
		}
		missing := max(float64(len(values)-1-i), 0.5) / float64(len(values))
		fmt.Fprintf(&p, "H%sV%s", num(x), num(y(missing)))
		last = x
	}
	return p.String()
}
