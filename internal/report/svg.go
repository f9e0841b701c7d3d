// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html"
	"html/template"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
)

//go:embed style.css
var style string

// Charts have two layouts of fixed width. A page shows the narrow one on a phone, where the wide one
// would shrink its text.
const (
	wideWidth   = 860.0
	narrowWidth = 380.0
	margin      = 14.0
)

// Chart is a drawing in SVG. Its colours come from the page's style, or from its own when it stands
// alone. Alt states its data in words.
type Chart struct {
	Title, Alt string
	draw       func(*canvas)
}

// canvas is one layout of a chart.
type canvas struct {
	width, height float64
	narrow        bool
	body          strings.Builder
}

// right returns the right end of the plot.
func (c *canvas) right() float64 { return c.width - margin }

// left returns the left end of the plot: labels of this width stand next to it, or above it in the
// narrow layout.
func (c *canvas) left(labels float64) float64 {
	if c.narrow {
		return margin
	}
	return labels
}

func (c *Chart) layout(narrow bool) *canvas {
	out := &canvas{width: wideWidth, narrow: narrow}
	if narrow {
		out.width = narrowWidth
	}
	c.draw(out)
	return out
}

func (c *Chart) label() string {
	if c.Alt == "" {
		return c.Title
	}
	return c.Title + ". " + c.Alt
}

// hatch fills suspended time. It is defined once per file, because a browser ignores patterns of an
// element that it does not show.
const hatch = `<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" class="hatch"/></pattern>`

// HTML returns both layouts of the chart as elements of a page.
func (c *Chart) HTML() template.HTML {
	var b strings.Builder
	for _, narrow := range []bool{false, true} {
		l, class := c.layout(narrow), "wide"
		if narrow {
			class = "narrow"
		}
		fmt.Fprintf(&b, "<svg class=\"%s\" viewBox=\"0 0 %g %s\" role=\"img\" aria-label=\"%s\">\n%s</svg>\n",
			class, l.width, num(l.height), html.EscapeString(c.label()), l.body.String())
	}
	// Every text in the bodies was escaped when it was drawn.
	return template.HTML(b.String())
}

// WriteSVG writes charts below each other as a file of its own, each under its title.
func WriteSVG(w io.Writer, title, subtitle string, charts ...*Chart) error {
	all := &canvas{width: wideWidth, height: 44}
	all.text(margin, 26, "h", title)
	if subtitle != "" {
		all.text(margin, 45, "", subtitle)
		all.height += 16
	}
	label := []string{title}
	for _, c := range charts {
		if len(charts) > 1 {
			all.text(margin, all.height+12, "b", c.Title)
			all.height += 24
		}
		if c.Title != title {
			label = append(label, c.Title)
		}
		if c.Alt != "" {
			label = append(label, strings.TrimSuffix(c.Alt, "."))
		}
		l := c.layout(false)
		fmt.Fprintf(&all.body, "<g transform=\"translate(0 %s)\">\n%s</g>\n", num(all.height), l.body.String())
		all.height += l.height + 10
	}
	defs := ""
	if strings.Contains(all.body.String(), `class="stop"`) {
		defs = "<defs>" + hatch + "</defs>\n"
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %s" width="%[1]g" height="%[2]s" role="img" aria-label="%s">
<style>
%s</style>
%s<rect width="100%%" height="100%%" class="paper"/>
%s</svg>
`, all.width, num(all.height), html.EscapeString(strings.Join(label, ". ")), fileStyle(), defs, all.body.String())
	if err != nil {
		return fmt.Errorf("write chart: %w", err)
	}
	return nil
}

// num formats a coordinate with at most one decimal.
func num(v float64) string { return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") }

func (c *canvas) text(x, y float64, class, s string) {
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

func (c *canvas) rect(x, y, w, h float64, class, tip string) {
	fmt.Fprintf(&c.body, "<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" class=\"%s\"", num(x), num(y), num(w), num(h), class)
	if tip == "" {
		c.body.WriteString("/>\n")
		return
	}
	fmt.Fprintf(&c.body, "><title>%s</title></rect>\n", html.EscapeString(tip))
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&c.body, "<line x1=\"%s\" y1=\"%s\" x2=\"%s\" y2=\"%s\" class=\"%s\"/>\n", num(x1), num(y1), num(x2), num(y2), class)
}

func (c *canvas) path(class, d string) {
	fmt.Fprintf(&c.body, "<path class=\"%s\" d=\"%s\"/>\n", class, d)
}

// width estimates how wide a text of 12 pixels is, generously.
func width(s string) float64 { return 6.3 * float64(len([]rune(s))) }

// legend draws entries from left to right and wraps. draw draws a sample 26 wide at the position.
func (c *canvas) legend(left float64, names []string, draw func(i int, x, y float64)) {
	x := left
	c.height += 14
	for i, name := range names {
		if x > left && x+32+width(name) > c.right() {
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
	lo, hi, left, right float64
	log                 bool
}

// logScale covers lo to hi with round ends, at least one decade.
func logScale(lo, hi, left, right float64) scale {
	if lo <= 0 || math.IsInf(lo, 0) || math.IsNaN(lo) {
		lo = 0.01
	}
	lo = round(lo, false)
	return scale{lo, round(max(hi, 10*lo), true), left, right, true}
}

// x returns the position of v; values outside the scale are at its ends. The conversions keep the
// compiler from fusing operations, so that all architectures draw the same bytes.
func (s scale) x(v float64) float64 {
	v = min(max(v, s.lo), s.hi)
	part := (v - s.lo) / (s.hi - s.lo)
	if s.log {
		part = math.Log10(v/s.lo) / math.Log10(s.hi/s.lo)
	}
	return s.left + float64((s.right-s.left)*part)
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

// axis draws the grid lines from top to bottom and their labels below, as far as they have room.
func (c *canvas) axis(s scale, top, bottom float64, unit string, label func(float64) string) {
	free := math.Inf(-1)
	tick := func(v float64, text bool) {
		class := "grid"
		if !text {
			class = "faint"
		}
		c.line(s.x(v), top, s.x(v), bottom, class)
		half := width(label(v)) / 2
		if !text || s.x(v)-half < free {
			return
		}
		if free = s.x(v) + half; free > c.width {
			c.text(c.width-2, bottom+17, "e", label(v))
		} else {
			c.text(max(s.x(v), half), bottom+17, "m", label(v))
		}
	}
	if s.log {
		wide := s.hi/s.lo > 2e3 || c.narrow && s.hi/s.lo > 50
		for e := math.Floor(math.Log10(s.lo)); math.Pow(10, e) <= s.hi*(1+1e-9); e++ {
			for m := 1.0; m < 10; m++ {
				if v := m * math.Pow(10, e); v >= s.lo*(1-1e-9) && v <= s.hi*(1+1e-9) {
					tick(v, m == 1 || !wide && (m == 2 || m == 5))
				}
			}
		}
	} else {
		step := round((s.hi-s.lo)/10, true)
		if c.narrow {
			step = round((s.hi-s.lo)/5, true)
		}
		for i := math.Ceil(s.lo / step); i*step <= s.hi*(1+1e-9); i++ {
			tick(i*step, true)
		}
	}
	c.text(s.right, bottom+36, "e", unit)
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

var (
	colour = regexp.MustCompile(`--([a-z0-9-]+): (#[0-9a-f]{6});`)
	usage  = regexp.MustCompile(`([a-z-]+): var\(--([a-z0-9-]+)\)`)
)

// fileStyle is the style for a file of its own. Viewers without CSS variables, such as librsvg, skip a value
// that they do not know and use the light colour before it.
func fileStyle() string {
	light := map[string]string{}
	for _, c := range colour.FindAllStringSubmatch(style, -1) {
		if light[c[1]] == "" { // the dark ones follow
			light[c[1]] = c[2]
		}
	}
	return usage.ReplaceAllStringFunc(style, func(use string) string {
		part := usage.FindStringSubmatch(use)
		return part[1] + ": " + light[part[2]] + "; " + use
	})
}
