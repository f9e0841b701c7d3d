// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"

	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file handles programs that joined but whose runtime is not hooked: only their hardware queues
// are visible. Such a program gets one queue per GPU, as an attached one does, until it announces
// a queue there itself. It counts as idle until it uses CPU time.

// BareSession is a session with queues whose work can only be guessed.
type BareSession struct {
	ID  model.SessionID
	PID int
}

// Bare returns them, without those that turn out to have hooks after all: what they have on
// GPUs they announce themselves, once they have some.
func (l *Loop) Bare(ctx context.Context) ([]BareSession, error) {
	if l.bare.Load() == 0 {
		return nil, nil
	}
	var out []BareSession
	err := l.call(ctx, func() {
		for _, c := range l.clients {
			if len(c.bare) > 0 && c.page.Counters().HookedCalls > 0 {
				for gpu := range c.bare {
					l.hook(c, gpu)
				}
				l.settle(c)
			}
			if len(c.bare) > 0 {
				out = append(out, BareSession{c.ID, c.PID})
			}
		}
	})
	return out, err
}

// guessed says that nobody tells whether the queue has work.
func (q *queue) guessed() bool { return q.gate == nil }

// enterBare gives a program queues on GPUs where it has hardware queues and announced nothing.
func (l *Loop) enterBare(c *Client) {
	for gpu, can := range c.caps {
		if !can.Bare || can.MaxLevel <= model.LevelBlock || c.onGPU[gpu] > 0 || c.hooked[gpu] || len(c.bare) >= maxGPUs {
			continue
		}
		// Beyond the slots of the page, so that none of those is meant.
		id := model.QueueID{Session: c.ID, Index: wire.MaxQueues + uint32(len(c.bare))}
		for c.queues[id.Index] != nil {
			id.Index++
		}
		q := &queue{id: id, device: gpu, generation: 1}
		if c.bare == nil {
			c.bare = map[model.DeviceID]*queue{}
		}
		c.bare[gpu] = q
		l.bare.Add(1)
		l.enter(l.now(), c, q)
	}
	// One that has no hardware queue any more.
	for gpu, q := range c.bare {
		if _, ok := c.caps[gpu]; !ok {
			l.leaveBare(c, q)
		}
	}
	l.settle(c)
}

// hook notes that a program announces queues on a GPU itself.
func (l *Loop) hook(c *Client, gpu model.DeviceID) {
	if c.hooked == nil {
		c.hooked = map[model.DeviceID]bool{}
	}
	if len(c.hooked) < maxGPUs {
		c.hooked[gpu] = true
	}
	if q := c.bare[gpu]; q != nil {
		l.leaveBare(c, q)
	}
}

func (l *Loop) leaveBare(c *Client, q *queue) { l.removeQueue(l.now(), c, q) }

// forgetBare is removeQueue's part.
func (l *Loop) forgetBare(c *Client, q *queue) {
	if c.bare[q.device] == q {
		delete(c.bare, q.device)
		l.bare.Add(-1)
	}
}
