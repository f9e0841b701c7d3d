// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"time"

	"xsched/internal/clock"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// requestReader reads the requests of clients and their busy periods from the pages.
type requestReader struct {
	engine *input
	pace   *pacer
}

// waited returns how long a client was kept from running in a period.
func (r *requestReader) waited(c *Client) meter.Waited {
	return func(from, to model.Time) time.Duration { return r.engine.Waited(c.ID, from, to) }
}

// readLast measures a queue that was destroyed: its slot still has what happened since the last reading.
func (r *requestReader) readLast(now model.Time, c *Client, q *queue) {
	if q.gate == nil {
		return
	}
	if v := c.page.Queue(int(q.id.Index)); v.Generation == q.generation+1 && v.Transitions != q.seen.transitions {
		r.measure(now, c, q, &v)
	}
}

// measure finds the requests that ended since the last reading of a queue. It runs before the queue's
// transitions are updated.
func (r *requestReader) measure(now model.Time, c *Client, q *queue, v *wire.QueueView) {
	if c.requests.Measure(now, &q.period, v, q.seen.transitions, c.hints.Hint.SLO.Latency, r.waited(c)) {
		c.touch()
	}
}

// readMarks reads the marked requests that finished since the last call.
func (r *requestReader) readMarks(now model.Time, c *Client) {
	m := &c.requests
	if c.Attached || !c.page.Marked(m.Read) {
		return
	}
	if r.pace.shared() && !c.account.within(r.pace.window) {
		return // the ring keeps the newest requests
	}
	start := clock.Now()
	defer func() { c.account.spend(clock.Now().Sub(start)) }()
	unknown, anew, waited := uint64(0), false, r.waited(c)
	read, lost := c.page.Marks(m.Read, func(mark wire.Mark) {
		if mark.End > now {
			unknown++ // a timestamp in the future
			return
		}
		anew = m.Mark(now, mark, c.hints.Hint.SLO.Latency, waited) || anew
		// Report both ends after the request, because requests may overlap in any order.
		r.engine.MarkRequest(mark.Begin, c.PID, true)
		r.engine.MarkRequest(mark.End, c.PID, false)
		r.engine.dirty = true
	})
	if m.Marked(read, lost, unknown) || anew {
		c.touch()
	}
}

// watch follows requests that do not end, and ends windows.
func (r *requestReader) watch(now model.Time, c *Client) {
	if c.requests.Watch(now, c.page.Begun) {
		c.touch()
	}
}
