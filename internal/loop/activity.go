// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"cmp"

	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/wire"
)

// Types of package meter that readers use.
type (
	LatencyView = meter.Latency
	Durations   = meter.Durations
	GPUShare    = meter.GPUShare
	GPUView     = meter.GPU
	GPUTotal    = meter.GPUTotal
	Counts      = meter.Counts
)

// Causes of a preemption other than a process.
const (
	ByHand   = engine.ByHand  // suspended by a control client
	ByGroup  = engine.ByGroup // suspended with its group of pods
	ByOthers = meter.ByOthers // no particular process, or too many of them
)

// activity keeps the account of what queues do, and reports it to the engine.
type activity struct {
	engine   *input
	registry *registry
	trace    *record.Trace // may be nil
	usage    *meter.Usage
	waits    driver.Histogram // time that busy queues were suspended
}

// note updates the account of a queue and its device.
func (a *activity) note(now model.Time, q *queue) {
	counts := q.busy && !q.polled && q.unproved == ""
	active := counts && q.want.Suspend == 0 && !q.yields
	if a.usage.Set(now, &q.use, active) {
		q.owner.touch()
	}
	a.usage.Wait(now, &q.use, counts && !active)
}

// yielded updates the account of a queue that the hardware leaves for the longer timeslices of others,
// or that runs again.
func (a *activity) yielded(t engine.Transition) {
	q := a.registry.queue(t.ID)
	if yields := t.To == engine.ActivityWait && !t.Gone; q == nil || q.id != t.ID || yields == q.yields {
		return
	}
	q.yields = !q.yields
	a.note(t.At, q)
	q.owner.touch()
	if q.yields {
		q.stops.Yield(t.At, t.By)
	} else {
		q.stops.Run(t.At)
	}
}

// suspended updates the account of a queue that was suspended or resumed.
func (a *activity) suspended(now model.Time, c *Client, q *queue, was bool) {
	a.note(now, q)
	c.touch()
	switch stop := q.want.Suspend != 0; {
	case stop && !was && q.busy:
		cause := a.registry.heldBy(c.PID)
		if cause == 0 {
			cause = a.engine.StoppedFor(q.id)
		}
		q.stops.Suspend(now, cause)
	case !stop:
		if waited, ok := q.stops.Resume(now); ok {
			a.waits.Record(waited)
		}
	}
}

// setBusy marks a queue busy or idle. The caller updates the workers.
func (a *activity) setBusy(now model.Time, c *Client, q *queue, busy bool, how submission) {
	q.busy = busy
	c.touch()
	a.note(now, q)
	if busy {
		a.engine.SetBusy(now, q.id, true)
	} else {
		q.stops.Resume(now)
		a.engine.SetIdleAfter(now, q.id, how.submitted, how.waited)
	}
	a.engine.dirty = true
	if len(c.queues) > 1 {
		c.markChanged(q.device)
	}
}

// traced accounts a transition and passes it on. The engine takes all suspensions that no policy decides for
// those by hand.
func (a *activity) traced(t engine.Transition) {
	if t.By == ByHand {
		t.By = cmp.Or(a.registry.heldBy(t.PID), ByHand)
	}
	a.yielded(t)
	if a.trace != nil {
		a.trace.Put(t)
	}
}

// progressed reports a program's launches to the engine, and whether a thread waits for them.
func (a *activity) progressed(now model.Time, q *queue, v *wire.QueueView, waits bool) {
	a.engine.SetProgress(now, q.id, model.Progress{Launches: v.Launches, Bursts: v.Bursts, Waits: waits})
	a.engine.dirty = true
}
