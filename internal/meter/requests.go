// SPDX-License-Identifier: Apache-2.0

// Package meter owns what is measured of programs: busy times and shares of GPUs, stops and their
// causes, the latency of requests, and estimates of work that nobody announces. It must not know how
// the readings arrive, nor who decides on them.
package meter

import (
	"time"

	"xsched/internal/model"
	"xsched/internal/wire"
)

// Requests finds the requests of a client: its busy periods, from the first queue with work until
// none has any, or those that the program marks, from the first mark on.
//
// A queue may be read only after several busy periods: a client that does not ring is read with
// heartbeats, and that of a throttled user later. The page has their number and their total time, so
// both stay exact. Each of them then counts with the mean. Estimated queues have no busy periods.
type Requests struct {
	// Read counts the marked requests that the page reported, and Lost those overwritten before.
	Read, Lost uint64

	joined  model.Time
	busy    int        // queues with work
	began   model.Time // of the request in progress
	figures *Figures   // nil: no request yet
	openAt  model.Time // marked requests are in progress, and none has ended since; 0: none is
}

// Waited returns for how long a client was kept from running in a period.
type Waited func(from, to model.Time) time.Duration

// Period is the measurement of one queue.
type Period struct {
	counted bool          // the queue is in Requests.busy
	since   model.Time    // start of the busy period, or when the queue was last seen idle
	done    time.Duration // total of the finished busy periods, by the client
}

// Begin sets the time from which on requests count.
func (m *Requests) Begin(now model.Time) { m.joined = now }

// Figures returns the figures so far; nil: no request yet.
func (m *Requests) Figures() *Figures { return m.figures }

// Enter begins to measure a queue.
func (m *Requests) Enter(now model.Time, p *Period, v *wire.QueueView) {
	*p = Period{since: m.joined, done: v.Finished()}
	m.follow(now, p, v)
}

// follow notes whether a queue has work now.
func (m *Requests) follow(now model.Time, p *Period, v *wire.QueueView) {
	busy := v.Busy()
	if busy {
		p.since = min(max(model.Time(v.ChangedNS&(1<<63-1)), p.since), now)
	} else {
		p.since = now
	}
	switch {
	case busy && !p.counted:
		m.busy++
	case !busy && p.counted:
		m.busy--
	}
	if p.counted = busy; busy && m.busy == 1 {
		m.began = p.since
	}
}

// Leave ends measuring a queue. A request that goes with its queue has no end.
func (m *Requests) Leave(p *Period) {
	if p.counted {
		p.counted = false
		m.busy--
	}
}

// Measure finds the requests that ended since the last reading of a queue, which had so many
// transitions. It reports whether the figures began anew.
func (m *Requests) Measure(now model.Time, p *Period, v *wire.QueueView, transitions uint64, target time.Duration, waited Waited) (anew bool) {
	finished := v.Finished()
	took := min(max(0, finished-p.done), max(0, now.Sub(p.since)))
	p.done = finished
	others := m.busy
	if p.counted {
		others--
	}
	if ended := v.Transitions/2 - transitions/2; ended > 0 && v.Transitions > transitions && others == 0 {
		from, to := p.since, now
		switch {
		case p.counted:
			from = min(from, m.began) // maybe with another queue
			if took += p.since.Sub(from); ended == 1 {
				to = min(now, from.Add(took))
			}
		case ended == 1 && !v.Busy():
			to = min(max(model.Time(v.ChangedNS&(1<<63-1)), from.Add(took)), now)
			from = to.Add(-took)
		}
		if f := m.figures; f == nil || !f.marked {
			anew = m.record(now, false, took/time.Duration(ended), waited(from, to)/time.Duration(ended), ended, target)
		}
	}
	m.follow(now, p, v)
	return anew
}

// record adds n requests of equal length to the figures.
func (m *Requests) record(now model.Time, marked bool, total, wait time.Duration, n uint64, target time.Duration) (anew bool) {
	if m.figures == nil || m.figures.marked != marked {
		m.figures = &Figures{marked: marked} // requests of another kind do not compare
		anew = true
	}
	m.figures.add(now, total, wait, n, target)
	return anew
}

// Mark adds a request that the program marked.
func (m *Requests) Mark(now model.Time, mark wire.Mark, target time.Duration, waited Waited) (anew bool) {
	begin := max(mark.Begin, min(m.joined, mark.End))
	return m.record(now, true, mark.End.Sub(begin), waited(begin, mark.End), 1, target)
}

// Marked accounts a reading of the marks, up to read in total. The durations of lost and unknown ones are not known.
// It reports whether there were any.
func (m *Requests) Marked(read, lost, unknown uint64) (changed bool) {
	if changed = read > m.Read || lost > 0; changed {
		m.Read = max(read, m.Read)
		m.Lost += lost
		m.openAt = 0
	}
	if f := m.figures; f != nil && f.marked {
		f.requests.Add(lost + unknown)
	}
	return changed
}

// Watch follows requests that do not end, and ends windows. begun is the number of requests that the
// program began. It reports whether one is in progress that was not, or none any more.
func (m *Requests) Watch(now model.Time, begun func() uint64) (changed bool) {
	f := m.figures
	if f == nil {
		return false
	}
	f.rotate(now)
	if !f.marked {
		return false
	}
	open := begun() > m.Read
	if open == (m.openAt != 0) {
		return false
	}
	if m.openAt = 0; open {
		m.openAt = now
	}
	return true
}

// Open returns for how long the request in progress lasts at least; 0: none.
func (m *Requests) Open(now model.Time) time.Duration {
	since := m.openAt
	if m.figures == nil || !m.figures.marked {
		if m.busy == 0 {
			return 0
		}
		since = m.began
	}
	if since == 0 {
		return 0
	}
	return max(0, now.Sub(since))
}
