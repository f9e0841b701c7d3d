// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/meter"
	"xsched/internal/model"
)

// estimator applies estimates of which queues without a gate have work.
type estimator struct {
	engine   *input
	activity *activity
	dispatch *dispatcher
}

func (e *estimator) times() meter.GuessTimes {
	cfg := e.engine.Config()
	return meter.NewGuessTimes(cfg.Quantum, cfg.StarvationBound)
}

// estimateChange is an estimated queue that a decision suspends or resumes.
type estimateChange struct {
	client *Client
	queue  *queue
	stop   bool
}

// applyChanges reports to the engine how a decision changes estimated queues. It runs after
// dispatcher.applyAll, which must not re-enter the engine.
func (e *estimator) applyChanges(now model.Time) {
	for i, g := range e.dispatch.estimated {
		e.dispatch.estimated[i] = estimateChange{}
		q := g.queue
		if g.client.queues[q.id.Index] != q {
			continue
		}
		if g.stop {
			q.estimate.Stop(now, e.engine.WaitsSince(q.id, q.estimate.Since()), e.times())
		} else {
			q.estimate.Resume(now)
		}
		e.apply(now, g.client, q)
		e.activity.suspended(now, g.client, q, !g.stop)
		e.dispatch.updateWorkers(g.client)
	}
	e.dispatch.estimated = e.dispatch.estimated[:0]
}

// apply reports the estimated state of a queue to the engine; the caller updates the workers.
func (e *estimator) apply(now model.Time, c *Client, q *queue) {
	if q.estimate.Busy() == q.busy {
		return
	}
	q.seen.transitions++ // setBusy marks the client as changed
	e.activity.setBusy(now, c, q, !q.busy, submission{})
	if q.busy && q.estimate.Stopped() {
		q.stops.Suspended(now)
	}
}
