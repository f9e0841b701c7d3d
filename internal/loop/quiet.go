// SPDX-License-Identifier: Apache-2.0

package loop

import "xsched/internal/model"

// This file keeps doorbells silent that nobody needs. While no decision depends on
// whether a queue has work (engine.Alone), its client is told not to ring: a
// program that has the GPU to itself then pays no system call for being busy and idle.
// Its state is read with every heartbeat, its time from what the client adds up.
//
// No change is lost when that ends: the client changes the page and then looks whether it
// is quiet, wire.Page.Listen says that it is not and then reads the page.

// rouse listens again to every queue that is no longer alone. It comes before a decision,
// which then knows what those queues do.
func (l *Loop) rouse(now model.Time) {
	for q, c := range l.quiet {
		if !l.engine.Alone(q.id) {
			l.loud(now, c, q)
			l.settle(c)
		}
	}
}

// hush stops listening to those that are alone after a decision.
func (l *Loop) hush(now model.Time) {
	l.engine.EachAlone(func(id model.QueueID) {
		c := l.clients[id.Session]
		if c == nil {
			return
		}
		q := c.queues[id.Index]
		if q == nil || q.quiet || q.gate == nil { // whose work is a guess has no client that could ring
			return
		}
		v := c.page.Queue(int(id.Index))
		if v.Generation != q.generation {
			return // its doorbell rings already
		}
		l.gpus.pause(now, q)
		q.quiet, q.worked, q.workedAt = true, v.Worked(now)-q.owed, now
		l.quiet[q] = c
		c.page.Hush(int(id.Index))
	})
}

// loud listens to a queue again; the caller settles.
func (l *Loop) loud(now model.Time, c *Client, q *queue) {
	if !q.quiet {
		return
	}
	v := c.page.Listen(int(q.id.Index))
	if v.Generation == q.generation {
		l.follow(now, c, q, &v)
	} else {
		l.gpus.worked(now, q, v.Worked(now)) // it ended: the slot goes on counting
	}
	delete(l.quiet, q)
	q.quiet, q.owed = false, v.Worked(now)-q.worked
	l.note(now, q)
}

// sample reads the queues that do not ring.
func (l *Loop) sample(now model.Time) {
	l.rouse(now)
	for q, c := range l.quiet {
		if v := c.page.Queue(int(q.id.Index)); v.Generation == q.generation {
			l.follow(now, c, q, &v)
			l.settle(c)
		}
	}
}
