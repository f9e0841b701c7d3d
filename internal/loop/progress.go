// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/model"
	"xsched/internal/wire"
)

// progress follows how programs submit their work, and finds programs that only copy (model.Copies).
// While a queue counts as one, its client rings the doorbell at its next launch, so that its first
// kernel is noticed even if the queue is busy already.
type progress struct {
	engine   *input
	registry *registry
	activity *activity
	due      []model.QueueID // scratch of read
}

// beganAgain separates two requests that would count as one: the program waited, and its queue was idle
// for a moment between two readings. how is how the first one was submitted.
func (p *progress) beganAgain(now model.Time, c *Client, q *queue, v *wire.QueueView, how submission) {
	p.activity.progressed(now, q, v, how.submitted > 0)
	p.activity.setBusy(now, c, q, false, how)
	p.activity.setBusy(now, c, q, true, submission{})
	if v.FedNS >= v.ChangedNS {
		p.activity.progressed(now, q, v, true)
	}
	p.request(c, q)
}

// request asks a client for its progress while decisions depend on it.
func (p *progress) request(c *Client, q *queue) {
	reports := uint32(0)
	if q.gate != nil && !q.polled && p.engine.Follow(q.id) {
		reports = wire.TellProgress | wire.TellWait
	}
	q.ask(c, reportSegments, reports)
}

// read reads the progress of the programs whose next wait is near.
func (p *progress) read(now model.Time) {
	p.due = p.engine.ProgressDue(now, p.due[:0])
	for _, id := range p.due {
		q := p.registry.queue(id)
		if q == nil || q.gate == nil {
			continue
		}
		v := q.owner.page.Queue(int(id.Index))
		if v.Generation != q.generation || v.Transitions != q.seen.transitions {
			continue // its doorbell is pending
		}
		waits := v.Busy() && v.FedNS >= q.seen.changed && v.Waits != q.seen.waits // a known wait may last while another thread submits
		if waits {
			q.seen.waits = v.Waits
		}
		p.engine.SetProgress(now, id, model.Progress{Launches: v.Launches, Bursts: v.Bursts, Waits: waits})
	}
}

// watchedQueues bounds the queues of one client that a heartbeat reads.
const watchedQueues = 16

// readCopies updates whether a queue has copies only.
func (p *progress) readCopies(now model.Time, c *Client, q *queue, v *wire.QueueView) {
	was := q.copies.Only
	if q.polled || q.gate == nil || len(q.merge.members) > 0 {
		q.copies = model.Copies{}
	} else {
		q.copies.See(now, v.Launches, v.Copies, v.Busy())
	}
	reports := uint32(0)
	if q.copies.Ask {
		reports = wire.TellProgress | wire.TellLaunch
	}
	q.ask(c, reportCopies, reports)
	if q.copies.Only != was {
		p.engine.SetCopying(now, q.id, q.copies.Only)
		p.engine.dirty = true
		c.touch()
	}
}

// watchCopies reads queues that are busy all the time, and so ring no doorbell.
func (p *progress) watchCopies(now model.Time, c *Client) {
	if len(c.queues) > watchedQueues {
		return
	}
	for _, q := range c.queues {
		if !q.busy || q.polled || q.gate == nil || q.merge.primary != nil || q.copies.Launched() && !q.copies.Ask {
			continue
		}
		if v := c.page.Queue(int(q.id.Index)); v.Generation == q.generation {
			p.readCopies(now, c, q, &v)
		}
	}
}
