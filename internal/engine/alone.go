// SPDX-License-Identifier: Apache-2.0

package engine

import "xsched/internal/model"

// Alone reports that no decision depends on whether a queue has work: it is the
// only one on its device, runs, and no hint concerns when it works. Unmanaged
// processes may be there too, as no queue is suspended for them. The caller may
// then leave out the queue's changes, and makes up for them by SetBusy when that
// ends. With an observer, which wants every change, Alone is false.
func (e *Engine) Alone(id model.QueueID) bool {
	r := e.queues[id]
	return r != nil && e.observer == nil && r.dev.alone()
}

// EachAlone calls f for every device that was decided about since the last call:
// with its queue if that is alone, with the zero value otherwise.
func (e *Engine) EachAlone(f func(d model.DeviceID, id model.QueueID, alone bool)) {
	for _, d := range e.agenda.takeFresh() {
		if len(d.records) == 1 && e.observer == nil && d.alone() {
			f(d.id, d.view.Queues[0].ID, true)
		} else {
			f(d.id, model.QueueID{}, false)
		}
	}
}

// EachPending calls f for every device on which something happened since the last
// decision: a queue that was alone there may not be any more.
func (e *Engine) EachPending(f func(d model.DeviceID)) {
	if e.agenda.all {
		for _, d := range e.devices {
			f(d.id)
		}
		return
	}
	for _, d := range e.agenda.pending {
		f(d.id)
	}
}

// alone is about a device as of the last decision. A device with something new
// must be decided about first.
func (d *device) alone() bool {
	if d.stale || d.size() != 1 || len(d.records) != 1 || len(d.view.Services) > 0 {
		return false
	}
	if d.state.Granted() {
		return false // from before the queue was alone; it ends when the queue goes idle
	}
	q, sent := &d.view.Queues[0], &d.records[0].sent
	return q.Eligible() && sent.Suspend == 0 && sent.InFlight == 0 && !aboutWork(&q.Hint)
}

// aboutWork reports that a hint counts from when a queue began to work, counts the
// GPU time it had, or ties it to others.
func aboutWork(h *model.Hint) bool {
	return h.SLO.Said() || h.Gang != "" || h.Deadline > 0 || h.Laxity > 0 ||
		h.Utilization > 0 && h.Utilization < model.UtilizationMax
}
