// SPDX-License-Identifier: Apache-2.0

package engine

import "xsched/internal/model"

// This file leaves queues alone that have copies only. Copies run on engines of their own, so they
// delay no kernel of a higher queue. Such a queue takes no part in decisions and always runs. The highest
// queues of a device do take part: their next kernel must not wait.

// SetCopying reports that a queue has copies only, or no longer.
func (e *Engine) SetCopying(now model.Time, id model.QueueID, copying bool) {
	r := e.queues[id]
	if r == nil || r.copying == copying {
		return
	}
	e.saw(Event{Kind: EventCopying, At: now, ID: id, On: copying})
	q := r.dev.queue(r)
	had := hasWork(q)
	r.setCopying(copying)
	if r.parked != nil {
		return // it has no work
	}
	if hasWork(q) && !had {
		r.dev.startWait(now, r)
	}
	r.dev.mark()
	r.dev.unsettled = append(r.dev.unsettled, r)
}

// Copying reports whether a queue is left alone because it has copies only.
func (e *Engine) Copying(id model.QueueID) bool {
	r := e.queues[id]
	return r != nil && r.dev.queue(r).Copying
}

func (r *record) setCopying(copying bool) {
	switch {
	case copying && !r.copying:
		r.dev.copying++
	case !copying && r.copying:
		r.dev.copying--
		r.dev.queue(r).Copying = false
	}
	r.copying = copying
}

// findCopying finds the queues to leave alone. The queues of a process share hardware queues: none of
// them is left alone while another one has kernels.
func (d *device) findCopying(top model.Priority) {
	if d.view.AnyCopying = d.copying > 0; !d.view.AnyCopying {
		return
	}
	computes := make([]bool, d.view.Processes)
	for i, r := range d.records {
		if q := &d.view.Queues[i]; q.Busy && !r.copying {
			computes[q.Process] = true
		}
	}
	for i, r := range d.records {
		q := &d.view.Queues[i]
		q.Copying = r.copying && r.gang == nil && q.Rank < top && q.Eligible() && !computes[q.Process]
	}
}
