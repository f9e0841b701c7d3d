// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// Bounds of the answer for one device.
const (
	shownSpans  = 8192
	shownSeries = 128 // those with the most time on the GPU
)

// Timeline is the history of one device.
type Timeline struct {
	Device   model.DeviceID
	Complete model.Time    // Spans is complete from here on
	Grain    time.Duration // spans up to this length are summed up per state; 0: all are exact
	Spans    []Span
	Series   []Series
}

// Span is a time during which a program was in one state.
type Span struct {
	Who      loop.Identity
	State    engine.Activity
	From, To model.Time
}

// Series has the points of a program.
type Series struct {
	Who    loop.Identity
	Points []Point
}

// Request selects a part of the history.
type Request struct {
	Now     model.Time
	Length  time.Duration
	Device  model.DeviceID // with One
	One     bool
	Visible func(*loop.Identity) bool
	// SpansSince limits the spans to those that ended later; for updates of a known history.
	SpansSince model.Time
}

// Steps returns the step of a series of a length, and the number of points.
func Steps(length time.Duration) (step time.Duration, n int) {
	step = FineStep
	if length > points*FineStep {
		step = CoarseStep
	}
	return step, int((length + step - 1) / step)
}

// Query returns the history up to now; From is the start of the first point.
func (h *History) Query(r Request) (from model.Time, out []Timeline) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(r.Now)
	step, n := Steps(r.Length)
	last := h.step / int64(step/FineStep) // the last complete step
	first := last - int64(n) + 1
	from = model.Time((first - 1) * int64(step)) // the point of a step was taken at its end
	for _, id := range slices.Sorted(maps.Keys(h.devices)) {
		if r.One && id != r.Device {
			continue
		}
		t := Timeline{Device: id}
		lanes := slices.DeleteFunc(h.sortedLanes(id), func(l *lane) bool { return !r.Visible(&l.who) })
		start := max(r.Now.Add(-min(r.Length, SpanTime)), r.SpansSince)
		t.Complete = max(h.complete, r.Now.Add(-SpanTime))
		t.Spans, t.Grain = h.spans(id, lanes, start, r.Now)
		t.Series = series(lanes, step, first, n)
		out = append(out, t)
	}
	return from, out
}

// spans returns the spans of lanes after a time, few enough to show.
func (h *History) spans(device model.DeviceID, lanes []*lane, start, now model.Time) ([]Span, time.Duration) {
	pieces := make(map[uint32][]piece, len(lanes))
	for _, l := range lanes {
		pieces[l.id] = nil
	}
	d, total := h.devices[device], 0
	for i := range d.size {
		s := &d.spans[(d.first+i)%len(d.spans)]
		if _, shown := pieces[s.lane]; shown && s.end() > start {
			pieces[s.lane] = append(pieces[s.lane], piece{max(s.from, start), s.end(), s.state})
			total++
		}
	}
	for _, l := range lanes {
		var room [keepMost]piece
		recent := room[:0]
		if l.bucket.n > 0 {
			recent = l.bucket.take(recent)
		}
		if l.state != engine.ActivityIdle && now > l.since {
			recent = append(recent, piece{l.since, now, l.state})
		}
		for _, p := range recent {
			if p.to > start {
				p.from = max(p.from, start)
				pieces[l.id] = append(pieces[l.id], p)
				total++
			}
		}
	}
	grain := time.Duration(0)
	for g := time.Millisecond; total > shownSpans && g <= SpanTime; g *= 2 {
		grain, total = g, 0
		for id, all := range pieces {
			pieces[id] = fold(all, g)
			total += len(pieces[id])
		}
	}
	out := make([]Span, 0, total)
	for _, l := range lanes {
		for _, p := range pieces[l.id] {
			out = append(out, Span{l.who, p.state, p.from, p.to})
		}
	}
	slices.SortStableFunc(out, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	return out, grain
}

// fold replaces the pieces shorter than grain within each grain of time by their sum per state.
func fold(all []piece, grain time.Duration) []piece {
	out := all[:0]
	var sums [engine.Activities]time.Duration
	bucket, start := int64(-1), model.Time(0)
	flush := func() {
		if bucket >= 0 {
			out = appendSums(out, start, &sums)
		}
		bucket, sums = -1, [engine.Activities]time.Duration{}
	}
	for _, p := range all {
		length := p.to.Sub(p.from)
		if at := int64(p.from) / int64(grain); length >= grain || at != bucket {
			flush()
			if length < grain {
				bucket, start = at, p.from
			}
		}
		if length >= grain {
			out = append(out, p)
			continue
		}
		sums[p.state] += length
	}
	flush()
	return out
}

// series returns the points of the lanes that used the GPU most.
func series(lanes []*lane, step time.Duration, first int64, n int) []Series {
	type used struct {
		Series
		share float32
	}
	var all []used
	for _, l := range lanes {
		ring := &l.fine
		if step == CoarseStep {
			ring = &l.coarse
		}
		u := used{Series: Series{l.who, make([]Point, n)}}
		any := false
		for i := range n {
			if s := first + int64(i); s >= 0 {
				u.Points[i] = ring[s%points]
			}
			u.share += u.Points[i].Share
			any = any || u.Points[i] != Point{}
		}
		if any {
			all = append(all, u)
		}
	}
	if len(all) > shownSeries {
		slices.SortStableFunc(all, func(a, b used) int { return cmp.Compare(b.share, a.share) })
		all = all[:shownSeries]
		slices.SortStableFunc(all, func(a, b used) int { return cmp.Compare(a.Who.ID, b.Who.ID) })
	}
	out := make([]Series, 0, len(all))
	for _, u := range all {
		out = append(out, u.Series)
	}
	return out
}
