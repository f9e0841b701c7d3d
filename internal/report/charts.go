// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
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
func CDF(title, unit string, curves []Curve) *Chart {
	const left, tall = 58.0, 270.0
	c := &Chart{Title: title}
	lo, hi, n := math.Inf(1), 0.0, 100
	var names []string
	for _, v := range curves {
		names = append(names, fmt.Sprintf("%s, P99 %s", v.Name, Short(Quantile(v.Values, 0.99))))
		if len(v.Values) > 0 {
			lo, hi, n = min(lo, v.Values[0]), max(hi, v.Values[len(v.Values)-1]), max(n, len(v.Values))
		}
	}
	c.legend(left, names, func(i int, x, y float64) {
		c.path("curve "+curves[i].Class, fmt.Sprintf("M%s %sh26", num(x), num(y)))
	})
	top, bottom := c.height+4, c.height+4+tall
	c.height = bottom + 44
	xs := logScale(lo, hi, left)
	c.axis(xs, top, bottom, unit, Plain)
	depth := math.Log10(2 * float64(n))
	y := func(missing float64) float64 {
		return bottom - float64(tall*min(-math.Log10(max(missing, 1e-9))/depth, 1))
	}
	for _, missing := range []float64{1, 0.5, 0.1, 0.05, 0.01, 0.001, 0.0001} {
		if -math.Log10(missing) <= depth {
			c.line(left, y(missing), plotRight, y(missing), "grid")
			c.text(left-8, y(missing)+4, "e", strconv.FormatFloat(100*(1-missing), 'g', 6, 64)+" %")
		}
	}
	for _, v := range curves {
		var p strings.Builder
		last := math.Inf(-1)
		for i, value := range v.Values {
			x := xs.x(value)
			// Of samples that fall on the same place only the last one is drawn.
			if x < last+0.3 && i+1 < len(v.Values) && xs.x(v.Values[i+1]) < last+0.3 {
				continue
			}
			if i == 0 {
				fmt.Fprintf(&p, "M%s %s", num(x), num(y(1)))
			}
			missing := max(float64(len(v.Values)-1-i), 0.5) / float64(len(v.Values))
			fmt.Fprintf(&p, "H%sV%s", num(x), num(y(missing)))
			last = x
		}
		if p.Len() > 0 {
			c.path("curve "+v.Class, p.String())
		}
	}
	return c
}

// Row is one row of a chart. Which fields count depends on the chart.
type Row struct {
	Name, Note, Class string
	Group             string // drawn in front of the first row that has it; at most two lines
	Dist              *Distribution
	Low, High, Most   float64   // Ranges
	Parts             []Part    // Bars
	Start, Step       float64   // Areas
	Values            []float64 // Areas
}

// Part is a piece of a bar.
type Part struct {
	Value       float64
	Class, Name string
}

// Distributions draws each row as bars over a shared logarithmic axis, scaled to its highest bar,
// with a mark at its P99. It returns nil without data.
func Distributions(title, unit string, label func(float64) string, rows []Row) *Chart {
	const left, tall, gap, head = 150.0, 62.0, 10.0, 14.0
	c := &Chart{Title: title}
	lo, hi := math.Inf(1), 0.0
	rows = slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Dist == nil || len(r.Dist.Buckets) == 0 })
	if len(rows) == 0 {
		return nil
	}
	for _, r := range rows {
		lo, hi = min(lo, float64(max(r.Dist.Min, 1))), max(hi, float64(r.Dist.Max)+1)
	}
	xs := logScale(lo, hi, left)
	bottom := 6 + float64(len(rows))*(tall+gap)
	c.height = bottom + 46
	c.axis(xs, 6, bottom, unit, label)
	for i, r := range rows {
		base := 6 + float64(i+1)*(tall+gap) - gap/2
		c.text(left-10, base-4, "k e", r.Name)
		c.line(left, base, plotRight, base, "axis")
		most := uint64(1)
		for _, b := range r.Dist.Buckets {
			most = max(most, b.Count)
		}
		for _, b := range r.Dist.Buckets {
			from, to := xs.x(max(float64(b.From), 0.7)), xs.x(float64(b.To))
			h := max(float64((tall-head)*float64(b.Count)/float64(most)), 1.5) // a single value stays visible
			c.rect(from, base-h, max(to-from-0.6, 0.8), h, r.Class,
				fmt.Sprintf("%s to %s: %s of %s", label(float64(b.From)), label(float64(b.To)), Count(float64(b.Count)), Count(float64(r.Dist.Count))))
		}
		x, class, dx := xs.x(r.Dist.P99), "n k", 5.0
		if x > plotRight-90 {
			class, dx = "n k e", -5
		}
		c.rect(x-0.75, base-tall, 1.5, tall, "p99", "P99 "+label(r.Dist.P99))
		c.text(x+dx, base-tall+10, class, "P99 "+label(r.Dist.P99))
	}
	return c
}

// rowHeight is that of Ranges and Bars.
const rowHeight = 20.0

// rows draws the labels of rows, with a gap between groups, and returns where each row begins.
func (c *Chart) rows(left float64, rows []Row) (tops []float64) {
	for i, r := range rows {
		if i > 0 && r.Group != rows[i-1].Group {
			c.height += 8
		}
		if r.Group != "" && (i == 0 || r.Group != rows[i-1].Group) {
			first, second, _ := strings.Cut(r.Group, "\n")
			c.text(14, c.height+14, "k", first)
			c.text(14, c.height+14+rowHeight-3, "n", second)
		}
		c.text(left-10, c.height+14, "e", r.Name)
		tops = append(tops, c.height)
		c.height += rowHeight
	}
	return tops
}

// Ranges draws each row from Low to High with a mark at Most, on a logarithmic axis.
func Ranges(title, unit string, rows []Row) *Chart {
	const left = 210.0
	c := &Chart{Title: title, height: 4}
	lo, hi := math.Inf(1), 0.0
	for _, r := range rows {
		if r.Low > 0 {
			lo, hi = min(lo, r.Low), max(hi, r.Most)
		}
	}
	xs := logScale(lo, hi, left)
	tops := c.rows(left, rows)
	c.axis(xs, 4, c.height+4, unit, Plain)
	for i, r := range rows {
		if r.Low <= 0 {
			continue
		}
		tip := fmt.Sprintf("%s, %s: P50 %s, P99 %s, max %s", r.Group, r.Name, Short(r.Low), Short(r.High), Short(r.Most))
		c.rect(xs.x(r.Low), tops[i]+6, max(2, xs.x(r.High)-xs.x(r.Low)), 8, r.Class, tip)
		c.rect(xs.x(r.Most)-1, tops[i]+3, 2, 14, r.Class, tip)
	}
	c.height += 46
	return c
}

// Bars draws each row as stacked parts from lo to hi. label formats the values. A row of one part
// has its value behind it, with the row's note; several parts have it inside, and a legend.
func Bars(title, unit string, lo, hi float64, log bool, label func(float64) string, rows []Row) *Chart {
	left := 110.0
	c := &Chart{Title: title, height: 4}
	if len(rows) == 0 {
		return c
	}
	switch {
	case strings.Contains(rows[0].Group, "\n"):
		left = 230
	case rows[0].Group != "":
		left = 210
	}
	if parts := rows[0].Parts; len(parts) > 1 {
		var names []string
		for _, p := range parts {
			names = append(names, p.Name)
		}
		c.legend(left, names, func(i int, x, y float64) { c.rect(x+8, y-6, 14, 12, parts[i].Class, "") })
	}
	top := c.height
	xs := scale{lo, hi, left, log}
	tops := c.rows(left, rows)
	c.axis(xs, top, c.height+4, unit, label)
	for i, r := range rows {
		sum := 0.0
		for _, p := range r.Parts {
			from, to := xs.x(sum), xs.x(sum+p.Value)
			sum += p.Value
			c.rect(from, tops[i]+3, max(to-from, 0.5), rowHeight-6, p.Class, p.Name+" "+label(p.Value))
			text := label(p.Value)
			if r.Note != "" {
				text += ", " + r.Note
			}
			switch {
			case len(r.Parts) == 1 && to+6+width(text) > chartWidth:
				c.text(to-6, tops[i]+14, "e on-"+p.Class, text)
			case len(r.Parts) == 1:
				c.text(to+6, tops[i]+14, "k", text)
			case to-from > 46:
				c.text((from+to)/2, tops[i]+14, "n m on-"+p.Class, label(p.Value))
			}
		}
	}
	c.height += 46
	return c
}

// maxLanes is how many rows a chart over time shows.
const maxLanes = 16

// Areas draws each row's values over time, in microseconds, scaled to its own maximum. It returns
// nil without data.
func Areas(title, unit string, label func(float64) string, rows []Row) *Chart {
	const left, tall, gap = 150.0, 30.0, 8.0
	rows = slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return len(r.Values) == 0 })
	rows = rows[:min(len(rows), maxLanes)]
	first, end := math.Inf(1), 0.0
	for _, r := range rows {
		first, end = min(first, r.Start), max(end, r.Start+float64(r.Step*float64(len(r.Values))))
	}
	if len(rows) == 0 || end <= first {
		return nil
	}
	c := &Chart{Title: title}
	xs := scale{0, end - first, left, false}
	bottom := 4 + float64(len(rows))*(tall+gap)
	c.height = bottom + 46
	c.axis(xs, 4, bottom, unit, Micros)
	for i, r := range rows {
		base := 4 + float64(i+1)*(tall+gap) - gap/2
		most := slices.Max(r.Values)
		c.text(left-10, base-13, "k e", r.Name)
		c.text(left-10, base, "n e", "max "+label(most))
		c.line(left, base, plotRight, base, "axis")
		if most <= 0 {
			continue
		}
		var p strings.Builder
		fmt.Fprintf(&p, "M%s %s", num(xs.x(r.Start-first)), num(base))
		for k, v := range r.Values {
			to := xs.x(r.Start - first + float64(r.Step*float64(k+1)))
			fmt.Fprintf(&p, "V%sH%s", num(base-float64(tall*max(v, 0)/most)), num(to))
		}
		c.path("area "+r.Class, p.String()+"V"+num(base)+"Z")
	}
	return c
}

// State is what a tenant does at a time.
type State uint8

// The states of a lane of a timeline.
const (
	Idle      State = iota // no work
	Running                // on the GPU
	Switching              // the GPU loads its context
	Waiting                // has work and may run, but another tenant has the GPU
	Suspended              // has work and is suspended
)

// Lane is one tenant of a timeline.
type Lane struct {
	Name, Note, Group string
	Class             string
	Pieces            []Piece
	Arrivals          []time.Duration // of requests
}

// Piece is a stretch of time in one state, from the start of the timeline.
type Piece struct {
	From, To time.Duration
	State    State
}

// Timeline draws who has the GPU, who waits (red) and who is suspended. The legend shows what occurs.
func Timeline(title string, span time.Duration, lanes []Lane) *Chart {
	const left, tall, bar, thin = 210.0, 30.0, 18.0, 8.0
	c := &Chart{Title: title, height: 4}
	lanes = lanes[:min(len(lanes), maxLanes)]
	xs := scale{0, MS(span), left, false}
	var tops []float64
	for i, l := range lanes {
		if i > 0 && l.Group != lanes[i-1].Group {
			c.height += 12
		}
		tops = append(tops, c.height)
		c.height += tall
	}
	c.axis(xs, 4, c.height, "", func(v float64) string { return Plain(v) + " ms" })
	var seen [Suspended + 1]bool
	arrivals := false
	for i, l := range lanes {
		middle, shift := tops[i]+tall/2, 4.0
		if l.Group != "" && (i == 0 || l.Group != lanes[i-1].Group) {
			c.text(14, middle+4, "", l.Group)
		}
		if l.Note != "" {
			shift = -1
			c.text(left-12, middle+12, "n e", Shorten(l.Note, 30))
		}
		c.text(left-12, middle+shift, "k e", Shorten(l.Name, 24))
		c.line(left, middle, plotRight, middle, "grid")
		for _, p := range l.Pieces {
			x1, x2, class, height := xs.x(MS(p.From)), xs.x(MS(p.To)), l.Class, thin
			switch p.State {
			case Running: // the shortest kernel stays visible
				x2, height = max(x2, x1+0.8), bar
			case Switching:
				x2, height, class = max(x2, x1+0.5), bar, "switch"
			case Waiting:
				class = "wait"
			case Suspended:
				class = "stop"
			case Idle:
				continue
			}
			if x2 > x1 {
				seen[p.State] = true
				c.rect(x1, middle-height/2, x2-x1, height, class, "")
			}
		}
		for _, at := range l.Arrivals {
			arrivals = true
			c.path("arrival", fmt.Sprintf("M%s %sl-3.5 -5h7z", num(xs.x(MS(at))), num(middle-bar/2)))
		}
	}
	names := []string{"on the GPU"}
	draw := []func(x, y float64){func(x, y float64) { c.rect(x, y-6, 24, 12, "c0", "") }}
	for _, e := range []struct {
		shown       bool
		name, class string
		height      float64
	}{
		{seen[Switching], "context switch", "switch", 12},
		{seen[Waiting], "waiting for the GPU", "wait", thin},
		{seen[Suspended], "suspended by XSched", "stop", thin},
	} {
		if e.shown {
			names = append(names, e.name)
			draw = append(draw, func(x, y float64) { c.rect(x, y-e.height/2, 24, e.height, e.class, "") })
		}
	}
	if arrivals {
		names = append(names, "request arrives")
		draw = append(draw, func(x, y float64) { c.path("arrival", fmt.Sprintf("M%s %sl-3.5 -5h7z", num(x+18), num(y+3))) })
	}
	if seen[Suspended] {
		c.body.WriteString(`<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" class="hatch"/></pattern></defs>` + "\n")
	}
	c.height += 26
	c.legend(110, names, func(i int, x, y float64) { draw[i](x, y) })
	return c
}
