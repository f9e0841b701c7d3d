// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/model"
	"xsched/internal/wire"
)

// poller reads the queues whose clients do not ring, one per device at most. No decision depends on the
// doorbell of a queue that is alone (engine.Alone). Its client then does not ring, so a program that
// has the GPU to itself makes no system call per transition. The loop reads the queue's state with
// every heartbeat, and its busy time from the total that the client keeps.
//
// No transition is lost at the end of polling. The client first changes the page and then reads the
// flag; wire.Page.Listen first clears the flag and then reads the page.
type poller struct {
	engine   *input
	registry *registry
	activity *activity
	dispatch *dispatcher
	// follow updates a queue from its page slot.
	follow func(now model.Time, c *Client, q *queue, v *wire.QueueView)

	queues map[model.DeviceID]*queue
	ended  []*queue // scratch of endListed
}

// endStale ends polling for the queues that are no longer alone. It runs before a decision, which then
// has the current state of those queues. Only devices with something new can have such a queue.
func (p *poller) endStale(now model.Time) {
	p.engine.EachPending(func(gpu model.DeviceID) {
		if q := p.queues[gpu]; q != nil && !p.engine.Alone(q.id) {
			p.ended = append(p.ended, q) // the end changes what is pending
		}
	})
	p.endListed(now)
}

// begin polls the queues that are alone after a decision.
func (p *poller) begin(now model.Time) {
	p.engine.EachAlone(func(gpu model.DeviceID, id model.QueueID, alone bool) {
		if !alone {
			if q := p.queues[gpu]; q != nil {
				p.ended = append(p.ended, q)
			}
			return
		}
		q := p.registry.queue(id)
		if q == nil || q.polled || q.gate == nil || len(q.merge.members) > 0 { // estimated queues have no doorbell
			return
		}
		c := q.owner
		v := c.page.Queue(int(id.Index))
		if v.Generation != q.generation {
			return // the slot was reused, and its doorbell is pending
		}
		p.activity.usage.Pause(now, &q.use, v.Worked(now))
		q.polled = true
		c.touch()
		p.queues[gpu] = q
		c.page.Hush(int(id.Index))
	})
	p.endListed(now)
}

// endListed ends polling for the queues in p.ended.
func (p *poller) endListed(now model.Time) {
	for i, q := range p.ended {
		p.end(now, q.owner, q)
		p.dispatch.updateWorkers(q.owner)
		p.ended[i] = nil
	}
	p.ended = p.ended[:0]
}

// end ends polling a queue; the caller updates the workers.
func (p *poller) end(now model.Time, c *Client, q *queue) {
	if !q.polled {
		return
	}
	v := c.page.Listen(int(q.id.Index))
	if v.Generation == q.generation {
		p.follow(now, c, q, &v)
	} else {
		p.activity.usage.Worked(now, &q.use, v.Worked(now)) // the queue is gone, but the slot keeps its total
	}
	delete(p.queues, q.device)
	q.polled = false
	p.activity.usage.Resume(&q.use, v.Worked(now))
	c.touch()
	p.activity.note(now, q)
}

// sample reads the state of the polled queues of all devices. Each shows its work at heartbeats only.
func (p *poller) sample(now model.Time) {
	for _, q := range p.queues {
		if !p.engine.Alone(q.id) {
			p.end(now, q.owner, q)
		} else if v := q.owner.page.Queue(int(q.id.Index)); v.Generation == q.generation {
			p.follow(now, q.owner, q, &v)
		}
		p.dispatch.updateWorkers(q.owner)
	}
}
