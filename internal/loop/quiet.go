// SPDX-License-Identifier: Apache-2.0

package loop

import "xsched/internal/model"

// This file silences doorbells that no decision depends on. While a queue is alone (engine.Alone),
// its client does not ring, so a program that has the GPU to itself makes no system call per
// transition. The loop reads the queue's state with every heartbeat, and its busy time from the total
// that the client keeps.
//
// No transition is lost at the end of quiet. The client first changes the page and then reads the
// quiet flag; wire.Page.Listen first clears the flag and then reads the page.

// endQuiet ends quiet for every queue that is no longer alone. It runs before a decision, which then
// has the current state of those queues.
func (l *Loop) endQuiet(now model.Time) {
	for q, c := range l.quiet {
		if !l.engine.Alone(q.id) {
			l.unquiet(now, c, q)
			l.updateWorkers(c)
		}
	}
}

// beginQuiet silences the queues that are alone after a decision.
func (l *Loop) beginQuiet(now model.Time) {
	l.engine.EachAlone(func(id model.QueueID) {
		c := l.clients[id.Session]
		if c == nil {
			return
		}
		q := c.queues[id.Index]
		if q == nil || q.quiet || q.gate == nil || len(q.folded) > 0 { // estimated queues have no doorbell
			return
		}
		v := c.page.Queue(int(id.Index))
		if v.Generation != q.generation {
			return // the slot was reused, and its doorbell is pending
		}
		l.gpus.pause(now, q)
		q.quiet, q.worked, q.workedAt = true, v.Worked(now)-q.owed, now
		l.quiet[q] = c
		c.page.Hush(int(id.Index))
	})
}

// unquiet ends quiet for a queue; the caller updates the workers.
func (l *Loop) unquiet(now model.Time, c *Client, q *queue) {
	if !q.quiet {
		return
	}
	v := c.page.Listen(int(q.id.Index))
	if v.Generation == q.generation {
		l.follow(now, c, q, &v)
	} else {
		l.gpus.worked(now, q, v.Worked(now)) // the queue is gone, but the slot keeps its total
	}
	delete(l.quiet, q)
	q.quiet, q.owed = false, v.Worked(now)-q.worked
	l.note(now, q)
}

// sample reads the state of the quiet queues.
func (l *Loop) sample(now model.Time) {
	l.endQuiet(now)
	for q, c := range l.quiet {
		if v := c.page.Queue(int(q.id.Index)); v.Generation == q.generation {
			l.follow(now, c, q, &v)
			l.updateWorkers(c)
		}
	}
}
