// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"

	"xsched/internal/clock"
	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file handles bare clients: programs that joined, but whose runtime is not hooked. Only their
// hardware queues are visible. A bare client gets one queue per GPU, as an attached one does, until
// it announces a queue there. It counts as idle until it uses CPU time.

// BareClient is a client with queues whose work is estimated.
type BareClient struct {
	ID   model.SessionID
	PID  int
	User identity.User
}

// Bare returns the bare clients. A client that has called a hook meanwhile is no longer bare: it
// announces its queues.
func (l *Loop) Bare(ctx context.Context) ([]BareClient, error) {
	if l.pages.unhookedQueues.Load() == 0 {
		return nil, nil
	}
	var out []BareClient
	err := l.call(ctx, func() {
		for c := range l.pages.unhooked {
			if c.page.Counters().HookedCalls > 0 {
				for gpu := range c.hooks.missing {
					l.pages.markHooked(c, gpu)
				}
				l.dispatch.updateWorkers(c)
			}
			if len(c.hooks.missing) > 0 {
				out = append(out, BareClient{c.ID, c.PID, c.User})
			}
		}
	})
	return out, err
}

// clientHooks says where a client announces its queues.
type clientHooks struct {
	seen    map[model.DeviceID]bool   // it has announced a queue there
	missing map[model.DeviceID]*queue // it has announced none; the work of this queue is estimated
}

// guessed reports whether the state of the queue is an estimate.
func (q *queue) guessed() bool { return q.gate == nil }

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

// dropUnhooked is the part of removeQueue for bare clients.
func (p *pages) dropUnhooked(c *Client, q *queue) {
	if c.hooks.missing[q.device] == q {
		delete(c.hooks.missing, q.device)
		p.unhookedQueues.Add(-1)
		if len(c.hooks.missing) == 0 {
			delete(p.unhooked, c)
		}
	}
}
