// SPDX-License-Identifier: Apache-2.0

// Package chart has what the project's HTML reports share: pictures computed as
// plain coordinates and drawn by a template as SVG, and a style for light and
// dark. A page loads nothing and runs no script.
package chart

import (
	_ "embed"
	"html/template"
	"math"
	"strconv"
)

//go:embed chart.gohtml
var source string

// Chart is a plot area with axes and what is drawn in it.
type Chart struct {
	Width, Height            float64
	Left, Top, Right, Bottom float64 // plot area
	XTicks, YTicks           []Tick
	XLabel                   string
	Lines                    []Line
	Bars                     []Bar
	Marks                    []Mark
	Title                    string // for screen readers
}

// Tick is a grid line with its label; a minor one is fainter.
type Tick struct {
	Pos   float64
	Label string
	Minor bool
}

// Line is a curve; Class picks its colour and dash pattern.
type Line struct{ Class, Path string }

// Bar is a rectangle that says Tip when pointed at.
type Bar struct {
	X, Y, W, H float64
	Class      string
	Tip        string
}

// Mark is a text in the picture.
type Mark struct {
	X, Y          float64
	Class, Anchor string
	Text          string
}

// Templates adds the templates "chart" and "style" to t.
func Templates(t *template.Template) (*template.Template, error) {
	return t.Funcs(template.FuncMap{"num": Num}).Parse(source)
}

// LogScale maps values to x.
type LogScale struct{ Lo, Hi, Left, Right float64 }

// NewLogScale covers lo to hi with round ends, at least a decade.
func NewLogScale(lo, hi, left, right float64) LogScale {
	if lo <= 0 || math.IsInf(lo, 0) || math.IsNaN(lo) {
		lo = 0.01
	}
	lo = roundDown(lo)
	return LogScale{lo, roundUp(max(hi, 10*lo)), left, right}
}

// X is the place of v; values outside are at the ends.
func (l LogScale) X(v float64) float64 {
	v = min(max(v, l.Lo), l.Hi)
	return l.Left + (l.Right-l.Left)*(math.Log10(v)-math.Log10(l.Lo))/(math.Log10(l.Hi)-math.Log10(l.Lo))
}

// Ticks are at 1, 2 and 5 of each power of ten, with names from label; over
// many decades only the powers have one.
func (l LogScale) Ticks(label func(float64) string) []Tick {
	var out []Tick
	wide := l.Hi/l.Lo > 2e4
	for e := math.Floor(math.Log10(l.Lo)); math.Pow(10, e) <= l.Hi*(1+1e-9); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			if v < l.Lo*(1-1e-9) || v > l.Hi*(1+1e-9) {
				continue
			}
			t := Tick{Pos: l.X(v), Minor: true}
			if m == 1 || !wide && (m == 2 || m == 5) {
				t.Minor, t.Label = false, label(v)
			}
			out = append(out, t)
		}
	}
	return out
}

// roundDown and roundUp go to the next of 1, 2, 5 times a power of ten.
func roundDown(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{5, 2, 1} {
		if m*p <= v*(1+1e-9) {
			return m * p
		}
	}
	return p
}

func roundUp(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*p >= v*(1-1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// LinearTicks are about n round steps from lo to hi.
func LinearTicks(lo, hi float64, n int, x func(float64) float64, label func(float64) string) []Tick {
	if hi <= lo || n < 1 {
		return nil
	}
	step := roundUp((hi - lo) / float64(n))
	var out []Tick
	for i := math.Ceil(lo / step); i*step <= hi*(1+1e-9); i++ {
		out = append(out, Tick{Pos: x(i * step), Label: label(i * step)})
	}
	return out
}

// Num is a coordinate.
func Num(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
