// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/engine"
	"xsched/internal/meter"
	"xsched/internal/model"
)

// This file accounts busy time, preemptions and yields.

// Types of package meter that readers use.
type (
	LatencyView = meter.Latency
	Durations   = meter.Durations
	GPUShare    = meter.GPUShare
	GPUView     = meter.GPU
)

// Causes of a preemption other than a process.
const (
	ByHand   = engine.ByHand  // suspended by a control client
	ByGroup  = engine.ByGroup // suspended with its group of pods
	ByOthers = meter.ByOthers // no particular process, or too many of them
)

// note updates the account of a queue and its device.
func (l *Loop) note(now model.Time, q *queue) {
	active := q.busy && q.want.Suspend == 0 && !q.yields && !q.quiet && q.unproved == ""
	if l.usage.Set(now, &q.use, active) {
		q.owner.touch()
	}
}

// accountYield updates the account of a queue that the hardware leaves for the longer timeslices of others,
// or that runs again.
func (l *Loop) accountYield(t engine.Transition) {
	c := l.clients[t.ID.Session]
	if c == nil {
		return
	}
	q := c.queues[t.ID.Index]
	if yields := t.To == engine.ActivityWait && !t.Gone; q == nil || q.id != t.ID || yields == q.yields {
		return
	}
	q.yields = !q.yields
	l.note(t.At, q)
	c.touch()
	if q.yields {
		q.stops.Yield(t.At, t.By)
	} else {
		q.stops.Run(t.At)
	}
}

// accountSuspension updates the account of a queue that was suspended or resumed.
func (l *Loop) accountSuspension(now model.Time, c *Client, q *queue, was bool) {
	l.note(now, q)
	c.touch()
	switch stop := q.want.Suspend != 0; {
	case stop && !was && q.busy:
		cause := l.heldBy(c.PID)
		if cause == 0 {
			cause = l.engine.StoppedFor(q.id)
		}
		q.stops.Suspend(now, cause)
	case !stop:
		if waited, ok := q.stops.Resume(now); ok {
			l.waits.Record(waited)
		}
	}
}
