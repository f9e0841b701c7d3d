// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file finds programs that only copy (model.Copies). While a queue counts as one, its client rings
// the doorbell at its next launch, so that its first kernel is noticed even if the queue is busy already.

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

// watchedQueues bounds the queues of one client that a heartbeat reads.
const watchedQueues = 16

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
