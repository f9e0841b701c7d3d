// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/clock"
	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// UnhookedClient is a program that joined, but whose runtime is not hooked. Only its hardware queues are
// visible. It gets one queue per GPU, as an attached one does, until it announces a queue there. It
// counts as idle until it uses CPU time.
type UnhookedClient struct {
	ID   model.SessionID
	PID  int
	User identity.User
}

// addUnhooked adds queues on GPUs where a client has hardware queues and has announced none.
func (p *pages) addUnhooked(c *Client) {
	for gpu, can := range c.caps {
		if !can.Bare || can.MaxLevel <= model.LevelBlock || c.counts.queues[gpu] > 0 || c.hooks.seen[gpu] || len(c.hooks.missing) >= maxGPUs {
			continue
		}
		// Indices beyond the slots of the page cannot collide with announced queues.
		id := model.QueueID{Session: c.ID, Index: wire.MaxQueues + uint32(len(c.hooks.missing))}
		for c.queues[id.Index] != nil {
			id.Index++
		}
		q := &queue{id: id, device: gpu, generation: 1}
		if c.hooks.missing == nil {
			c.hooks.missing = map[model.DeviceID]*queue{}
		}
		c.hooks.missing[gpu] = q
		p.unhookedQueues.Add(1)
		p.unhooked[c] = true
		p.enter(clock.Now(), c, q)
	}
	// Remove queues on GPUs where the client has no hardware queue any more.
	for gpu, q := range c.hooks.missing {
		if _, ok := c.caps[gpu]; !ok {
			p.removeQueue(clock.Now(), c, q)
		}
	}
	p.dispatch.updateWorkers(c)
}

// markHooked records that a client announces its queues on a GPU.
func (p *pages) markHooked(c *Client, gpu model.DeviceID) {
	if c.hooks.seen == nil {
		c.hooks.seen = map[model.DeviceID]bool{}
	}
	if len(c.hooks.seen) < maxGPUs {
		c.hooks.seen[gpu] = true
	}
	if q := c.hooks.missing[gpu]; q != nil {
		p.removeQueue(clock.Now(), c, q)
	}
}

// dropUnhooked is the part of removeQueue for unhooked clients.
func (p *pages) dropUnhooked(c *Client, q *queue) {
	if c.hooks.missing[q.device] == q {
		delete(c.hooks.missing, q.device)
		p.unhookedQueues.Add(-1)
		if len(c.hooks.missing) == 0 {
			delete(p.unhooked, c)
		}
	}
}

// addAttached gives an attached client one queue on each GPU that it uses. Its work is estimated: the
// queue starts busy.
func (p *pages) addAttached(c *Client) {
	for _, q := range c.queues {
		if _, ok := c.caps[q.device]; !ok {
			p.removeQueue(clock.Now(), c, q)
		}
	}
	for gpu, can := range c.caps {
		if c.counts.queues[gpu] == 0 && can.MaxLevel > model.LevelBlock && len(c.queues) < maxGPUs {
			id := model.QueueID{Session: c.ID}
			for c.queues[id.Index] != nil {
				id.Index++
			}
			p.enter(clock.Now(), c, &queue{id: id, device: gpu, generation: 1, busy: true})
		}
	}
	p.dispatch.updateWorkers(c)
}
