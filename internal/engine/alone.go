// SPDX-License-Identifier: Apache-2.0

package engine

import "xsched/internal/model"

// Alone says that no decision depends on whether a queue has work: it is the only one on its
// device, runs, and nothing was said of it that is about when it works. Programs that
// the engine can't schedule may be there too: it stops nobody for them. Who keeps
// the engine up to date may then leave out the queue's changes, and makes up for
// them by SetBusy when that ends. False while somebody observes the engine, who wants every
// change.
func (e *Engine) Alone(id model.QueueID) bool {
	r := e.queues[id]
	return r != nil && e.observer == nil && r.dev.alone()
}

// EachAlone calls f with every queue for which Alone is true.
func (e *Engine) EachAlone(f func(id model.QueueID)) {
	for _, d := range e.devices {
		if len(d.records) == 1 && e.Alone(d.view.Queues[0].ID) {
			f(d.view.Queues[0].ID)
		}
	}
}

// alone is about a device as of the last decision: one with something new has to be decided about.
func (d *device) alone() bool {
	if d.moved || len(d.records) != 1 || len(d.view.Services) > 0 {
		return false
	}
	if d.view.Grant.Active {
		return false // from when it was not: it ends with the queue's work
	}
	q, sent := &d.view.Queues[0], &d.records[0].sent
	return q.Eligible() && sent.Suspend == 0 && sent.InFlight == 0 && !aboutWork(&q.Hint)
}

// aboutWork says that a hint counts from when a queue began to work, or counts what it had,
// or ties it to others.
func aboutWork(h *model.Hint) bool {
	return h.SLO.Said() || h.Gang != "" || h.Deadline > 0 || h.Laxity > 0 ||
		h.Utilization > 0 && h.Utilization < model.UtilizationMax
}
