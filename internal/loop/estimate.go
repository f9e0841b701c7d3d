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
	known    meter.Estimates
}

func (e *estimator) times() meter.GuessTimes {
	cfg := e.engine.Config()
	return meter.NewGuessTimes(cfg.Quantum, cfg.StarvationBound)
}

// processOf identifies the process of a client for its estimates.
func processOf(c *Client) meter.ProcessID {
	if c.Program == nil {
		return meter.ProcessID{PID: c.PID}
	}
	return meter.ProcessID{PID: c.PID, Start: c.Program.Start}
}

// begin estimates a queue before it enters the engine.
func (e *estimator) begin(now model.Time, c *Client, q *queue) {
	q.estimate, q.probing = e.known.Begin(now, c.User.Account().Key(), processOf(c), q.device, q.busy, e.times())
	q.busy = q.estimate.Busy()
	if q.busy {
		q.seen.transitions++
	}
}

// end keeps the estimate of a queue that leaves.
func (e *estimator) end(now model.Time, c *Client, q *queue) {
	if q.guessed() {
		q.probing.End(now, processOf(c), q.estimate, e.times())
	}
}

// observe reports whether the program of a queue used CPU time since the last call.
func (e *estimator) observe(now model.Time, c *Client, q *queue, worked bool) {
	at := meter.Standing{Kept: e.engine.Kept(q.id), Starved: e.engine.WaitsSince(q.id, q.estimate.Since())}
	q.estimate.Observe(now, worked, at, e.times().PaidBy(q.probing))
	e.apply(now, c, q)
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
			q.estimate.Stop(now, e.engine.WaitsSince(q.id, q.estimate.Since()), e.times().PaidBy(q.probing))
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
