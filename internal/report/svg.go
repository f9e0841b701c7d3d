// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"
)

//go:embed style.css
var style string

// Every chart has the same width, so that a page lines up. A page scales it.
const (
	chartWidth = 860.0
	plotRight  = 846.0
)

// Chart is a drawing in SVG. Its colours come from the page's style, or from its own when it stands
// alone.
type Chart struct {
	Title  string
	height float64
	body   strings.Builder
}

// HTML returns the chart as an element of a page.
func (c *Chart) HTML() template.HTML {
	// Every text in the body was escaped when it was drawn.
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %g %s" role="img" aria-label="%s">`, chartWidth, num(c.height), html.EscapeString(c.Title)) +
		c.body.String() + "</svg>")
}

// WriteSVG writes charts below each other as a file of its own, each under its title.
func WriteSVG(w io.Writer, title, subtitle string, charts ...*Chart) error {
	all := &Chart{Title: title, height: 44}
	all.text(14, 26, "h", title)
	if subtitle != "" {
		all.text(14, 45, "", subtitle)
		all.height += 16
	}
	for _, c := range charts {
		if len(charts) > 1 {
			all.text(14, all.height+12, "b", c.Title)
			all.height += 24
		}
		fmt.Fprintf(&all.body, "<g transform=\"translate(0 %s)\">\n%s</g>\n", num(all.height), c.body.String())
		all.height += c.height + 10
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %s" width="%[1]g" height="%[2]s" role="img" aria-label="%s">
<style>
%s</style>
<rect width="100%%" height="100%%" class="paper"/>
%s</svg>
`, chartWidth, num(all.height), html.EscapeString(title), style, all.body.String())
	if err != nil {
		return fmt.Errorf("write chart: %w", err)
	}
	return nil
}

// num formats a coordinate with at most one decimal.
func num(v float64) string { return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") }

func (c *Chart) text(x, y float64, class, s string) {
	if s != "" {
		fmt.Fprintf(&c.body, "<text x=\"%s\" y=\"%s\"%s>%s</text>\n", num(x), num(y), classOf(class), html.EscapeString(s))
	}
}

func classOf(class string) string {
	if class == "" {
		return ""
	}
	return ` class="` + class + `"`
}

func (c *Chart) rect(x, y, w, h float64, class, tip string) {
	fmt.Fprintf(&c.body, "<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" class=\"%s\"", num(x), num(y), num(w), num(h), class)
	if tip == "" {
		c.body.WriteString("/>\n")
		return
	}
	fmt.Fprintf(&c.body, "><title>%s</title></rect>\n", html.EscapeString(tip))
}

func (c *Chart) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&c.body, "<line x1=\"%s\" y1=\"%s\" x2=\"%s\" y2=\"%s\" class=\"%s\"/>\n", num(x1), num(y1), num(x2), num(y2), class)
}

func (c *Chart) path(class, d string) {
	fmt.Fprintf(&c.body, "<path class=\"%s\" d=\"%s\"/>\n", class, d)
}

// width estimates how wide a text of 12 pixels is, generously.
func width(s string) float64 { return 6.3 * float64(len([]rune(s))) }

// legend draws entries from left to right and wraps. draw draws a sample 26 wide at the position.
func (c *Chart) legend(left float64, names []string, draw func(i int, x, y float64)) {
	x := left
	c.height += 14
	for i, name := range names {
		if x > left && x+32+width(name) > plotRight {
			x = left
			c.height += 18
		}
		draw(i, x, c.height-4)
		c.text(x+32, c.height, "", name)
		x += 32 + width(name) + 16
	}
	c.height += 10
}

// scale maps values to horizontal positions.
type scale struct {
	lo, hi, left float64
	log          bool
}

// logScale covers lo to hi with round ends, at least one decade.
func logScale(lo, hi, left float64) scale {
	if lo <= 0 || math.IsInf(lo, 0) || math.IsNaN(lo) {
		lo = 0.01
	}
	lo = round(lo, false)
	return scale{lo, round(max(hi, 10*lo), true), left, true}
}

// x returns the position of v; values outside the scale are at its ends. The conversions keep the
// compiler from fusing operations, so that all architectures draw the same bytes.
func (s scale) x(v float64) float64 {
	v = min(max(v, s.lo), s.hi)
	part := (v - s.lo) / (s.hi - s.lo)
	if s.log {
		part = math.Log10(v/s.lo) / math.Log10(s.hi/s.lo)
	}
	return s.left + float64((plotRight-s.left)*part)
}

// round returns the next of 1, 2, 5 times a power of ten.
func round(v float64, up bool) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	steps := []float64{5, 2, 1}
	if up {
		steps = []float64{1, 2, 5}
	}
	for _, m := range steps {
		if up && m*p >= v*(1-1e-9) || !up && m*p <= v*(1+1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// axis draws the grid lines from top to bottom and their labels below.
func (c *Chart) axis(s scale, top, bottom float64, unit string, label func(float64) string) {
	tick := func(v float64, text bool) {
		class := "grid"
		if !text {
			class = "faint"
		}
		c.line(s.x(v), top, s.x(v), bottom, class)
		if text && s.x(v)+width(label(v))/2 > chartWidth {
			c.text(chartWidth-2, bottom+17, "e", label(v))
		} else if text {
			c.text(s.x(v), bottom+17, "m", label(v))
		}
	}
	if s.log {
		wide := s.hi/s.lo > 2e3
		for e := math.Floor(math.Log10(s.lo)); math.Pow(10, e) <= s.hi*(1+1e-9); e++ {
			for m := 1.0; m < 10; m++ {
				if v := m * math.Pow(10, e); v >= s.lo*(1-1e-9) && v <= s.hi*(1+1e-9) {
					tick(v, m == 1 || !wide && (m == 2 || m == 5))
				}
			}
		}
	} else {
		step := round((s.hi-s.lo)/10, true)
		for i := math.Ceil(s.lo / step); i*step <= s.hi*(1+1e-9); i++ {
			tick(i*step, true)
		}
	}
	c.text(plotRight, bottom+36, "e", unit)
}

// ModeClass returns the colour class of a measured mode: the same mode has the same colour in every
// chart.
func ModeClass(mode string, i int) string {
	class, ok := map[string]int{
		"xsched": 0, "live": 0, "xsched-lv3": 0, "native": 1, "alone": 2, "level1": 3, "xsched-lv1": 3, "level2": 4, "xsched-lv2": 4,
		"timeslice": 5, "suspend": 6, "mps": 7, "mps-priority": 4,
	}[mode]
	if !ok {
		class = i % 8
	}
	return fmt.Sprintf("c%d", class)
}
