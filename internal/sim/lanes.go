// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"xsched/internal/model"
	"xsched/internal/report"
	gpumodel "xsched/internal/virtual/model"
)

// sketch records the state that the devices do not have, for the timeline: which ranks have work
// and which are suspended.
type sketch struct {
	changes  [][]laneChange  // by rank
	requests [][]requestSpan // by rank, complete ones
}

// requestSpan lasts from a request's arrival to its end.
type requestSpan struct{ from, to model.Time }

type laneChange struct {
	at            model.Time
	busy, stopped bool
}

func newSketch(ranks int) *sketch {
	return &sketch{changes: make([][]laneChange, ranks), requests: make([][]requestSpan, ranks)}
}

// look records changes since the last call.
func (s *sketch) look(c *cell) {
	for i, r := range c.ranks {
		now := laneChange{c.now, r.page.busy(), r.joined && (!r.channel.Enabled() || r.gate.closed)}
		if n := len(s.changes[i]); n > 0 {
			if last := s.changes[i][n-1]; last.busy == now.busy && last.stopped == now.stopped {
				continue
			}
		}
		s.changes[i] = append(s.changes[i], now)
	}
}

// done records a request that ends now.
func (s *sketch) done(in *inst, arrival model.Time) {
	for _, r := range in.ranks {
		i := int(r.id.Session) - 1
		s.requests[i] = append(s.requests[i], requestSpan{arrival, in.cell.now})
	}
}

// spans returns the requests of a rank, including those that last beyond the end.
func (s *sketch) spans(rank int, in *inst, from, to model.Time) []report.Request {
	if in.tenant.Arrivals.Closed != nil {
		return nil
	}
	var out []report.Request
	for _, r := range s.requests[rank] {
		if r.to > from && r.from < to {
			out = append(out, report.Request{From: r.from.Sub(from), To: r.to.Sub(from)})
		}
	}
	unfinished := slices.Clone(in.backlog)
	for _, list := range [][]request{in.active, in.returning} {
		for i := range list {
			unfinished = append(unfinished, list[i].pending)
		}
	}
	for _, p := range unfinished {
		if p.at < to {
			out = append(out, report.Request{From: p.at.Sub(from), To: to.Sub(from) + 1})
		}
	}
	return out
}

// lanes combines the recorded states with the devices' timelines.
func (s *sketch) lanes(c *cell, spans []gpumodel.Span, from, to model.Time) []report.Lane {
	out := make([]report.Lane, 0, len(c.ranks))
	for i, r := range c.ranks {
		t := r.inst.tenant
		l := report.Lane{Name: t.Name, Note: hintNote(&t.Hint), Class: fmt.Sprintf("c%d", r.inst.class%8)}
		if len(c.gpus) > 1 {
			l.Group = fmt.Sprintf("GPU %d", r.gpu)
		}
		l.Requests = s.spans(i, r.inst, from, to)
		at := from
		add := func(end model.Time, state report.State) {
			if end = min(end, to); end <= at {
				return
			}
			if n := len(l.Pieces); n > 0 && l.Pieces[n-1].State == state {
				l.Pieces[n-1].To = end.Sub(from)
			} else {
				l.Pieces = append(l.Pieces, report.Piece{From: at.Sub(from), To: end.Sub(from), State: state})
			}
			at = end
		}
		// Off the device, the recorded state applies.
		fill := func(end model.Time) {
			for k, ch := range s.changes[i] {
				until := end
				if k+1 < len(s.changes[i]) {
					until = min(end, s.changes[i][k+1].at)
				}
				switch {
				case ch.at >= end:
					return
				case !ch.busy:
					add(until, report.Idle)
				case ch.stopped:
					add(until, report.Suspended)
				default:
					add(until, report.Waiting)
				}
			}
		}
		for _, span := range spans {
			if span.Device != r.gpu || span.PID != i+1 || span.Kind == gpumodel.KindIdle {
				continue
			}
			fill(model.Time(span.T0))
			if at < model.Time(span.T0) {
				add(model.Time(span.T0), report.Idle) // before the first record
			}
			state := report.Running
			if span.Kind == gpumodel.KindSwitch {
				state = report.Switching
			}
			add(model.Time(span.T1), state)
		}
		fill(to)
		out = append(out, l)
	}
	slices.SortStableFunc(out, func(a, b report.Lane) int { return strings.Compare(a.Group, b.Group) })
	return out
}

// hintNote summarizes a tenant's hint.
func hintNote(h *Hint) string {
	m := h.model()
	var parts []string
	said := func(yes bool, format string, args ...any) {
		if yes {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	short := func(d time.Duration) string { return strings.Replace(d.String(), "ms", " ms", 1) }
	said(m.Priority != 0, "priority %d", m.Priority)
	said(m.Utilization != 0, "share %d %%", m.Utilization)
	said(m.Timeslice != 0, "timeslice %s", short(m.Timeslice))
	said(m.Deadline != 0, "deadline %s", short(m.Deadline))
	said(m.K != 0, "k %d", m.K)
	said(m.Laxity != 0, "laxity %s, then prio %d", short(m.Laxity), m.CriticalPriority)
	said(m.WindowActive, "active window")
	said(m.Nice != 0, "nice %d", m.Nice)
	said(m.SLO.Said(), "P%v ≤ %s", m.SLO.P(), short(m.SLO.Latency))
	said(m.Gang != "", "gang %s", m.Gang)
	return strings.Join(parts, ", ")
}
