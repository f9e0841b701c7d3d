// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"time"
)

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
	Requests          []Request
}

// Piece is a stretch of time in one state, from the start of the timeline.
type Piece struct {
	From, To time.Duration
	State    State
}

// Request lasts from its arrival to its end. One that ends after the timeline ends at or after its span;
// one that arrived before has a negative From.
type Request struct {
	From, To time.Duration
}

// The measures of a lane.
const (
	laneHeight = 34.0
	laneBar    = 18.0 // on the GPU
	laneThin   = 8.0  // off the GPU
)

// Timeline draws who has the GPU, who waits (red) and who is suspended, and each request from its
// arrival to its end. The legend shows what occurs.
func Timeline(title string, span time.Duration, lanes []Lane) *Chart {
	lanes = lanes[:min(len(lanes), maxLanes)]
	var alt []string
	for i := range lanes {
		alt = append(alt, lanes[i].alt(span))
	}
	draw := func(c *canvas) {
		left, names := c.left(210), 0.0
		if c.narrow {
			names = 18
		}
		c.height = 4
		xs := scale{0, MS(span), left, c.right(), false}
		var tops []float64
		for i, l := range lanes {
			if i > 0 && l.Group != lanes[i-1].Group {
				c.height += 12
			}
			tops = append(tops, c.height+names)
			c.height += laneHeight + names
		}
		c.axis(xs, 4, c.height, "", func(v float64) string { return Plain(v) + " ms" })
		var seen drawn
		for i := range lanes {
			c.laneLabel(&lanes[i], left, tops[i]+laneHeight/2, i == 0 || lanes[i].Group != lanes[i-1].Group)
			c.lane(&lanes[i], xs, span, tops[i]+laneHeight/2, &seen)
		}
		c.height += 26
		c.laneLegend(&seen)
	}
	return &Chart{Title: title, Alt: strings.Join(alt, "; ") + ".", draw: draw}
}

// alt states a lane in words.
func (l *Lane) alt(span time.Duration) string {
	var sum [Suspended + 1]time.Duration
	for _, p := range l.Pieces {
		sum[p.State] += p.To - p.From
	}
	parts := []string{"on the GPU " + Micros(1000*MS(sum[Running]))}
	if sum[Suspended] > 0 {
		parts = append(parts, "suspended "+Micros(1000*MS(sum[Suspended])))
	}
	if n := len(l.Requests); n > 0 {
		longest := time.Duration(0)
		for _, r := range l.Requests {
			longest = max(longest, min(r.To, span)-max(r.From, 0))
		}
		parts = append(parts, Plural(n, "request")+", the longest "+Micros(1000*MS(longest)))
	}
	return strings.TrimPrefix(l.Group+", ", ", ") + l.Name + ": " + strings.Join(parts, ", ")
}

func (c *canvas) laneLabel(l *Lane, left, middle float64, first bool) {
	if c.narrow {
		name := strings.TrimSpace(l.Group + " " + l.Name)
		if l.Note != "" {
			name += " (" + l.Note + ")"
		}
		c.text(left, middle-laneHeight/2-2, "k", Shorten(name, 54))
		return
	}
	if l.Group != "" && first {
		c.text(margin, middle+4, "", l.Group)
	}
	shift := 4.0
	if l.Note != "" {
		shift = -1
		c.text(left-12, middle+12, "n e", Shorten(l.Note, 30))
	}
	c.text(left-12, middle+shift, "k e", Shorten(l.Name, 24))
}

// drawn is what a timeline shows, for its legend.
type drawn struct {
	states   [Suspended + 1]bool
	requests bool
}

func (c *canvas) lane(l *Lane, xs scale, span time.Duration, middle float64, seen *drawn) {
	c.line(xs.left, middle, xs.right, middle, "grid")
	for _, p := range l.Pieces {
		x1, x2, class, height := xs.x(MS(p.From)), xs.x(MS(p.To)), l.Class, laneThin
		switch p.State {
		case Running: // the shortest kernel stays visible
			x2, height = max(x2, x1+0.8), laneBar
		case Switching:
			x2, height, class = max(x2, x1+0.5), laneBar, "switch"
		case Waiting:
			class = "wait"
		case Suspended:
			class = "stop"
		case Idle:
			continue
		}
		if x2 > x1 {
			seen.states[p.State] = true
			c.rect(x1, middle-height/2, x2-x1, height, class, "")
		}
	}
	for _, r := range l.Requests {
		if r.To <= 0 || r.From >= span {
			continue
		}
		seen.requests = true
		x1, x2, top := xs.x(MS(r.From)), xs.x(MS(r.To)), middle-laneBar/2
		c.path("span", fmt.Sprintf("M%s %sV%sH%sV%s", num(x1), num(top-1), num(top-4), num(max(x2, x1+1)), num(top-1)))
		if r.From >= 0 {
			c.path("arrival", fmt.Sprintf("M%s %sl-3 -4h6z", num(x1), num(top-1)))
		}
	}
}

func (c *canvas) laneLegend(seen *drawn) {
	names := []string{"on the GPU"}
	draw := []func(x, y float64){func(x, y float64) { c.rect(x, y-6, 24, 12, "c0", "") }}
	for _, e := range []struct {
		shown       bool
		name, class string
		height      float64
	}{
		{seen.states[Switching], "context switch", "switch", 12},
		{seen.states[Waiting], "waiting for the GPU", "wait", laneThin},
		{seen.states[Suspended], "suspended by XSched", "stop", laneThin},
	} {
		if e.shown {
			names = append(names, e.name)
			draw = append(draw, func(x, y float64) { c.rect(x, y-e.height/2, 24, e.height, e.class, "") })
		}
	}
	if seen.requests {
		names = append(names, "request, arrival to end")
		draw = append(draw, func(x, y float64) {
			c.path("span", fmt.Sprintf("M%s %sv-4h20v4", num(x+3), num(y+3)))
			c.path("arrival", fmt.Sprintf("M%s %sl-3 -4h6z", num(x+3), num(y+3)))
		})
	}
	c.legend(c.left(110), names, func(i int, x, y float64) { draw[i](x, y) })
}
