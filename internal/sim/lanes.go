// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// laneState is what a program does at a time.
type laneState uint8

const (
	laneIdle    laneState = iota // has no work
	laneRun                      // has the device
	laneSwitch                   // is being loaded
	laneWait                     // has work and may run; somebody else has the device
	laneStopped                  // has work and is stopped
)

// lane is one program on one device, for the picture.
type lane struct {
	name, note string
	gpu, class int
	pieces     []piece
	arrivals   []model.Time // of requests, where they come by themselves
}

// piece is a time in one state.
type piece struct {
	from, to model.Time
	state    laneState
}

// sketch notes, while a picture is drawn, what the devices don't know: who has work, and
// whether it is stopped.
type sketch struct {
	changes  [][]laneChange // by rank
	arrivals [][]model.Time
}

type laneChange struct {
	at            model.Time
	busy, stopped bool
}

func newSketch(ranks int) *sketch {
	return &sketch{changes: make([][]laneChange, ranks), arrivals: make([][]model.Time, ranks)}
}

// look notes what has changed.
func (s *sketch) look(c *cell) {
	for i, r := range c.ranks {
		now := laneChange{c.now, r.busy(), r.joined && (!r.channel.Enabled() || r.gate.closed)}
		if n := len(s.changes[i]); n > 0 {
			if last := s.changes[i][n-1]; last.busy == now.busy && last.stopped == now.stopped {
				continue
			}
		}
		s.changes[i] = append(s.changes[i], now)
	}
}

// came notes a request.
func (s *sketch) came(in *inst) {
	for _, r := range in.ranks {
		i := int(r.id.Session) - 1
		s.arrivals[i] = append(s.arrivals[i], in.cell.now)
	}
}

// lanes puts that together with who had the devices.
func (s *sketch) lanes(c *cell, spans []gpumodel.Span, from, to model.Time) []lane {
	out := make([]lane, 0, len(c.ranks))
	for i, r := range c.ranks {
		t := r.inst.tenant
		l := lane{name: t.Name, note: hintNote(&t.Hint), gpu: r.gpu, class: r.inst.class}
		for _, at := range s.arrivals[i] {
			if at >= from && at < to {
				l.arrivals = append(l.arrivals, at)
			}
		}
		at := from
		add := func(end model.Time, state laneState) {
			if end = min(end, to); end <= at {
				return
			}
			if n := len(l.pieces); n > 0 && l.pieces[n-1].state == state {
				l.pieces[n-1].to = end
			} else {
				l.pieces = append(l.pieces, piece{at, end, state})
			}
			at = end
		}
		// Where it has not the device: as it said.
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
					add(until, laneIdle)
				case ch.stopped:
					add(until, laneStopped)
				default:
					add(until, laneWait)
				}
			}
		}
		for _, span := range spans {
			if span.Device != r.gpu || span.PID != i+1 || span.Kind == gpumodel.KindIdle {
				continue
			}
			fill(model.Time(span.T0))
			if at < model.Time(span.T0) {
				add(model.Time(span.T0), laneIdle) // before anything was known
			}
			state := laneRun
			if span.Kind == gpumodel.KindSwitch {
				state = laneSwitch
			}
			add(model.Time(span.T1), state)
		}
		fill(to)
		out = append(out, l)
	}
	slices.SortStableFunc(out, func(a, b lane) int { return a.gpu - b.gpu })
	return out
}

// hintNote says what a tenant's hint says, in short.
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
