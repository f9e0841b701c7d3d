// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"time"

	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file finds the requests of a client: its busy periods, from the first queue with work until
// none has any, or those that the program marks, from the first mark on.
//
// The loop may see a queue only after several busy periods: a quiet doorbell does not ring, and that of
// a throttled user counts later. The page has their number and their total time, so both stay exact.
// Each of them then counts with the mean. Estimated queues have no busy periods.

// meter finds the requests of a client.
type meter struct {
	joined  model.Time
	busy    int        // queues with work
	began   model.Time // of the request in progress
	figures *figures   // nil: no request yet

	read   uint64     // marked requests read from the page so far
	lost   uint64     // of them: overwritten before they were read
	openAt model.Time // marked requests are in progress, and none has ended since; 0: none is
}

// period is the meter's state of a queue.
type period struct {
	counted bool          // the queue is in meter.busy
	since   model.Time    // start of the busy period, or when the queue was last seen idle
	done    time.Duration // total of the finished busy periods, by the client
}

// enterPeriod begins to measure a queue.
func (c *Client) enterPeriod(now model.Time, q *queue, v *wire.QueueView) {
	q.period = period{since: c.meter.joined, done: v.Finished()}
	c.resume(now, q, v)
}

// resume is the rest of a look at a queue: whether it has work now.
func (c *Client) resume(now model.Time, q *queue, v *wire.QueueView) {
	m, p := &c.meter, &q.period
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

// leavePeriod ends measuring a queue. A request that goes with its queue has no end.
func (c *Client) leavePeriod(q *queue) {
	if q.period.counted {
		q.period.counted = false
		c.meter.busy--
	}
}

// lastLook measures a queue that was destroyed: its slot still has what happened since the last look.
func (l *Loop) lastLook(now model.Time, c *Client, q *queue) {
	if q.gate == nil {
		return
	}
	if v := c.page.Queue(int(q.id.Index)); v.Generation == q.generation+1 && v.Transitions != q.transitions {
		l.measure(now, c, q, &v)
	}
}

// measure finds the requests that ended since the last look at a queue. It runs before the queue's
// transitions are updated.
func (l *Loop) measure(now model.Time, c *Client, q *queue, v *wire.QueueView) {
	m, p := &c.meter, &q.period
	finished := v.Finished()
	took := min(max(0, finished-p.done), max(0, now.Sub(p.since)))
	p.done = finished
	others := m.busy
	if p.counted {
		others--
	}
	if ended := v.Transitions/2 - q.transitions/2; ended > 0 && v.Transitions > q.transitions && others == 0 {
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
			wait := l.engine.Waited(c.ID, from, to)
			c.record(now, false, took/time.Duration(ended), wait/time.Duration(ended), ended)
		}
	}
	c.resume(now, q, v)
}

// record adds n requests of equal length to the figures.
func (c *Client) record(now model.Time, marked bool, total, wait time.Duration, n uint64) {
	m := &c.meter
	if m.figures == nil || m.figures.marked != marked {
		m.figures = &figures{marked: marked} // requests of another kind do not compare
		c.touch()
	}
	m.figures.add(now, total, wait, n, c.hints.Hint.SLO.Latency)
}

// readRequests reads the marked requests that finished since the last call.
func (l *Loop) readRequests(now model.Time, c *Client) {
	m := &c.meter
	if c.Attached || !c.page.Marked(m.read) {
		return
	}
	if l.shared() && !c.account.within(l.window) {
		return // the ring keeps the newest requests
	}
	start := l.now()
	defer func() { c.account.spend(l.now().Sub(start)) }()
	var unknown uint64
	read, lost := c.page.Marks(m.read, func(mark wire.Mark) {
		if mark.End > now {
			unknown++ // a timestamp in the future
			return
		}
		begin := max(mark.Begin, min(m.joined, mark.End))
		c.record(now, true, mark.End.Sub(begin), l.engine.Waited(c.ID, begin, mark.End), 1)
		// Report both ends after the request, because requests may overlap in any order.
		l.engine.MarkRequest(mark.Begin, c.PID, true)
		l.engine.MarkRequest(mark.End, c.PID, false)
		l.dirty = true
	})
	if read > m.read || lost > 0 {
		m.read = max(read, m.read)
		m.lost += lost
		m.openAt = 0
		c.touch()
	}
	if f := m.figures; f != nil && f.marked {
		f.requests.Add(lost + unknown)
	}
}

// watchRequests follows requests that do not end, and ends windows.
func (l *Loop) watchRequests(now model.Time, c *Client) {
	m := &c.meter
	f := m.figures
	if f == nil {
		return
	}
	f.rotate(now)
	if !f.marked {
		return
	}
	if open := c.page.Begun() > m.read; open != (m.openAt != 0) {
		if m.openAt = 0; open {
			m.openAt = now
		}
		c.touch()
	}
}

// open returns for how long the request in progress lasts at least; 0: none.
func (m *meter) open(now model.Time) time.Duration {
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
