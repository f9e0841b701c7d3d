// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"context"
	"fmt"
	"io"
	"time"

	"xsched/internal/bench"
	"xsched/internal/report"
)

// pictures is what the charts need; it is not in the JSON.
type pictures struct {
	requests        []time.Duration
	window          bench.Window    // of the timeline
	segments        []bench.Segment // the device's own record; empty on a real GPU
	pauses, busies  []bench.Window  // suspensions of the offline program, requests of the online one
	online, offline map[int]bool    // processes
}

// drawnSpan is the length of the timeline.
const drawnSpan = 300 * time.Millisecond

// draw keeps the device's record of the last moments, which it forgets later.
func (c *colocation) draw(ctx context.Context) error {
	c.drawn = bench.Window{From: max(c.together.from, c.together.to-int64(drawnSpan)), To: c.together.to}
	if c.rig.Device == nil {
		return nil
	}
	var err error
	if c.segments, _, err = c.rig.Device.Record(ctx, c.drawn); err != nil {
		return fmt.Errorf("read the device's record: %w", err)
	}
	return nil
}

// pieces turns intervals into one state of a lane.
func (p *pictures) pieces(list []bench.Window, state report.State) []report.Piece {
	var out []report.Piece
	for _, w := range list {
		from, to := max(w.From, p.window.From), min(w.To, p.window.To)
		if to > from {
			out = append(out, report.Piece{From: time.Duration(from - p.window.From), To: time.Duration(to - p.window.From), State: state})
		}
	}
	return out
}

// lanes returns both programs. Suspensions and waits lie below what the device recorded.
func (p *pictures) lanes() []report.Lane {
	online := report.Lane{Name: "online", Class: "c0", Pieces: p.pieces(p.busies, report.Waiting)}
	if len(p.segments) == 0 { // without a record the time of a request is all that is known
		online.Pieces = p.pieces(p.busies, report.Running)
	}
	offline := report.Lane{Name: "offline", Class: "low", Pieces: p.pieces(p.pauses, report.Suspended)}
	for _, w := range p.busies {
		if w.From >= p.window.From {
			online.Arrivals = append(online.Arrivals, time.Duration(w.From-p.window.From))
		}
	}
	for _, s := range p.segments {
		state := report.Running
		if s.Switch {
			state = report.Switching
		}
		piece := p.pieces([]bench.Window{{From: s.From, To: s.To}}, state)
		switch {
		case p.online[s.PID]:
			online.Pieces = append(online.Pieces, piece...)
		case p.offline[s.PID]:
			offline.Pieces = append(offline.Pieces, piece...)
		}
	}
	return []report.Lane{online, offline}
}

// WriteSVG draws the latency histogram and the timeline.
func (r *Report) WriteSVG(w io.Writer) error {
	var h report.Histogram
	for _, d := range r.raw.requests {
		h.Add(uint64(d / time.Microsecond))
	}
	charts := []*report.Chart{report.Distributions("Latency histogram", "latency of an online request (log)", report.Micros,
		[]report.Row{{Name: "online", Class: "c0", Dist: h.Distribution()}})}
	if span := r.raw.window.Length(); span > 0 {
		charts = append(charts, report.Timeline("Who has the GPU: the last moments", span, r.raw.lanes()))
	}
	t := r.Throughput
	return report.WriteSVG(w, "Online and offline on one GPU", fmt.Sprintf("%d requests, P99 %s ms; offline loss: net %s, gross %s",
		len(r.raw.requests), report.Short(r.Requests.P99), report.Percent(t.Net), report.Percent(t.Loss)), charts...)
}
