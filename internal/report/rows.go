// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

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

// title names a row in a text alternative.
func (r *Row) title() string {
	if r.Group == "" {
		return r.Name
	}
	return strings.ReplaceAll(r.Group, "\n", " ") + ", " + r.Name
}

// Distributions draws each row as bars over a shared logarithmic axis, scaled to its highest bar,
// with a mark at its P99. It returns nil without data.
func Distributions(title, unit string, label func(float64) string, rows []Row) *Chart {
	const tall, gap, head = 62.0, 10.0, 14.0
	lo, hi := math.Inf(1), 0.0
	rows = slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Dist == nil || len(r.Dist.Buckets) == 0 })
	if len(rows) == 0 {
		return nil
	}
	var alt []string
	for i := range rows {
		d := rows[i].Dist
		lo, hi = min(lo, float64(max(d.Min, 1))), max(hi, float64(d.Max)+1)
		alt = append(alt, fmt.Sprintf("%s: %s values, P50 %s, P99 %s", rows[i].title(), Count(float64(d.Count)), label(d.P50), label(d.P99)))
	}
	draw := func(c *canvas) {
		left, names := c.left(150), 0.0
		if c.narrow {
			names = 16
		}
		xs := logScale(lo, hi, left, c.right())
		row := tall + gap + names
		bottom := 6 + float64(len(rows))*row
		c.height = bottom + 46
		c.axis(xs, 6, bottom, unit, label)
		for i, r := range rows {
			base := 6 + float64(i+1)*row - gap/2
			if c.narrow {
				c.text(left, base-tall-3, "k", r.Name)
			} else {
				c.text(left-10, base-4, "k e", r.Name)
			}
			c.line(left, base, c.right(), base, "axis")
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
			if x > c.right()-90 {
				class, dx = "n k e", -5
			}
			c.rect(x-0.75, base-tall, 1.5, tall, "p99", "P99 "+label(r.Dist.P99))
			c.text(x+dx, base-tall+10, class, "P99 "+label(r.Dist.P99))
		}
	}
	return &Chart{Title: title, Alt: strings.Join(alt, "; ") + ".", draw: draw}
}

// rowHeight is that of Ranges and Bars.
const rowHeight = 20.0

// nameWidth is the space for names in front of the rows of the narrow layout.
const nameWidth = 104.0

// rows draws the labels of rows, with a gap between groups, and returns where each row begins.
func (c *canvas) rows(left float64, rows []Row) (tops []float64) {
	for i, r := range rows {
		if i > 0 && r.Group != rows[i-1].Group {
			c.height += 8
		}
		if r.Group != "" && (i == 0 || r.Group != rows[i-1].Group) {
			first, second, _ := strings.Cut(r.Group, "\n")
			if c.narrow {
				c.text(margin, c.height+14, "k", strings.TrimSpace(first+" "+second))
				c.height += rowHeight
			} else {
				c.text(margin, c.height+14, "k", first)
				c.text(margin, c.height+14+rowHeight-3, "n", second)
			}
		}
		c.text(left-10, c.height+14, "e", r.Name)
		tops = append(tops, c.height)
		c.height += rowHeight
	}
	return tops
}

// Ranges draws each row from Low to High with a mark at Most, on a logarithmic axis.
func Ranges(title, unit string, rows []Row) *Chart {
	lo, hi := math.Inf(1), 0.0
	var alt []string
	for i := range rows {
		if r := &rows[i]; r.Low > 0 {
			lo, hi = min(lo, r.Low), max(hi, r.Most)
			alt = append(alt, fmt.Sprintf("%s: P50 %s, P99 %s, max %s", r.title(), Short(r.Low), Short(r.High), Short(r.Most)))
		}
	}
	draw := func(c *canvas) {
		left := 210.0
		if c.narrow {
			left = nameWidth
		}
		c.height = 4
		xs := logScale(lo, hi, left, c.right())
		tops := c.rows(left, rows)
		c.axis(xs, 4, c.height+4, unit, Plain)
		for i, r := range rows {
			if r.Low <= 0 {
				continue
			}
			tip := fmt.Sprintf("%s: P50 %s, P99 %s, max %s", r.title(), Short(r.Low), Short(r.High), Short(r.Most))
			c.rect(xs.x(r.Low), tops[i]+6, max(2, xs.x(r.High)-xs.x(r.Low)), 8, r.Class, tip)
			c.rect(xs.x(r.Most)-1, tops[i]+3, 2, 14, r.Class, tip)
		}
		c.height += 46
	}
	return &Chart{Title: title, Alt: strings.Join(alt, "; ") + ".", draw: draw}
}

// Bars draws each row as stacked parts from lo to hi. label formats the values. A row of one part
// has its value behind it, with the row's note; several parts have it inside, and a legend. With log,
// rows are ratios of one part: their bars begin at 1, and one below 1 points to the left. It returns
// nil without rows.
func Bars(title, unit string, lo, hi float64, log bool, label func(float64) string, rows []Row) *Chart {
	if len(rows) == 0 {
		return nil
	}
	var alt []string
	for i := range rows {
		var values []string
		for _, p := range rows[i].Parts {
			value := label(p.Value)
			if len(rows[i].Parts) > 1 {
				value = p.Name + " " + value
			}
			values = append(values, value)
		}
		if rows[i].Note != "" {
			values = append(values, rows[i].Note)
		}
		alt = append(alt, rows[i].title()+": "+strings.Join(values, ", "))
	}
	draw := func(c *canvas) {
		left := 110.0
		switch {
		case c.narrow:
			left = nameWidth
		case strings.Contains(rows[0].Group, "\n"):
			left = 230
		case rows[0].Group != "":
			left = 210
		}
		c.height = 4
		if parts := rows[0].Parts; len(parts) > 1 {
			var names []string
			for _, p := range parts {
				names = append(names, p.Name)
			}
			c.legend(c.left(left), names, func(i int, x, y float64) { c.rect(x+8, y-6, 14, 12, parts[i].Class, "") })
		}
		top := c.height
		xs := scale{lo, hi, left, c.right(), log}
		tops := c.rows(left, rows)
		c.axis(xs, top, c.height+4, unit, label)
		for i, r := range rows {
			c.bar(xs, tops[i], &r, label)
		}
		c.height += 46
	}
	return &Chart{Title: title, Alt: strings.Join(alt, "; ") + ".", draw: draw}
}

// bar draws one row of Bars.
func (c *canvas) bar(xs scale, top float64, r *Row, label func(float64) string) {
	sum := 0.0
	for _, p := range r.Parts {
		from, to := xs.x(sum), xs.x(sum+p.Value)
		if xs.log {
			from, to = min(xs.x(1), xs.x(p.Value)), max(xs.x(1), xs.x(p.Value))
		}
		sum += p.Value
		c.rect(from, top+3, max(to-from, 0.5), rowHeight-6, p.Class, p.Name+" "+label(p.Value))
		text := label(p.Value)
		if r.Note != "" && !c.narrow {
			text += ", " + r.Note
		}
		switch {
		case len(r.Parts) == 1 && to+6+width(text) > c.right():
			c.text(to-6, top+14, "e on-"+p.Class, text)
		case len(r.Parts) == 1:
			c.text(to+6, top+14, "k", text)
		case to-from > 46:
			c.text((from+to)/2, top+14, "n m on-"+p.Class, label(p.Value))
		}
	}
}

// maxLanes is how many rows a chart over time shows.
const maxLanes = 16

// Areas draws each row's values over time, in microseconds, scaled to its own maximum. It returns
// nil without data.
func Areas(title, unit string, label func(float64) string, rows []Row) *Chart {
	const tall, gap = 30.0, 8.0
	rows = slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return len(r.Values) == 0 })
	rows = rows[:min(len(rows), maxLanes)]
	first, end := math.Inf(1), 0.0
	var alt []string
	for i := range rows {
		r := &rows[i]
		first, end = min(first, r.Start), max(end, r.Start+float64(r.Step*float64(len(r.Values))))
		alt = append(alt, fmt.Sprintf("%s: at most %s", r.title(), label(slices.Max(r.Values))))
	}
	if len(rows) == 0 || end <= first {
		return nil
	}
	draw := func(c *canvas) {
		left, names := c.left(150), 0.0
		if c.narrow {
			names = 16
		}
		xs := scale{0, end - first, left, c.right(), false}
		row := tall + gap + names
		bottom := 4 + float64(len(rows))*row
		c.height = bottom + 46
		c.axis(xs, 4, bottom, unit, Micros)
		for i, r := range rows {
			base := 4 + float64(i+1)*row - gap/2
			most := slices.Max(r.Values)
			if c.narrow {
				c.text(left, base-tall-3, "k", r.Name)
				c.text(c.right(), base-tall-3, "n e", "max "+label(most))
			} else {
				c.text(left-10, base-13, "k e", r.Name)
				c.text(left-10, base, "n e", "max "+label(most))
			}
			c.line(left, base, c.right(), base, "axis")
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
	}
	return &Chart{Title: title, Alt: strings.Join(alt, "; ") + ".", draw: draw}
}
