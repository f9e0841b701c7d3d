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

// endQuiet ends quiet for the queues that are no longer alone. It runs before a decision, which then
// has the current state of those queues. Only devices with something new can have such a queue.
func (l *Loop) endQuiet(now model.Time) {
	l.engine.EachPending(func(gpu model.DeviceID) {
		if q := l.quiet[gpu]; q != nil && !l.engine.Alone(q.id) {
			l.ended = append(l.ended, q) // ending quiet changes what is pending
		}
	})
	l.endNow(now)
}

// beginQuiet silences the queues that are alone after a decision.
func (l *Loop) beginQuiet(now model.Time) {
	l.engine.EachAlone(func(gpu model.DeviceID, id model.QueueID, alone bool) {
		if !alone {
			if q := l.quiet[gpu]; q != nil {
				l.ended = append(l.ended, q)
			}
			return
		}
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
		l.usage.Pause(now, &q.use, v.Worked(now))
		q.quiet = true
		c.touch()
		l.quiet[gpu] = q
		c.page.Hush(int(id.Index))
	})
	l.endNow(now)
}

// endNow ends quiet for the queues in l.ended.
func (l *Loop) endNow(now model.Time) {
	for i, q := range l.ended {
		l.unquiet(now, q.owner, q)
		l.updateWorkers(q.owner)
		l.ended[i] = nil
	}
	l.ended = l.ended[:0]
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
		l.usage.Worked(now, &q.use, v.Worked(now)) // the queue is gone, but the slot keeps its total
	}
	delete(l.quiet, q.device)
	q.quiet = false
	l.usage.Resume(&q.use, v.Worked(now))
	c.touch()
	l.note(now, q)
}

// sample reads the state of the quiet queues, of all devices: each shows its work at heartbeats only.
func (l *Loop) sample(now model.Time) {
	for _, q := range l.quiet {
		if !l.engine.Alone(q.id) {
			l.unquiet(now, q.owner, q)
		} else if v := q.owner.page.Queue(int(q.id.Index)); v.Generation == q.generation {
			l.follow(now, q.owner, q, &v)
		}
		l.updateWorkers(q.owner)
	}
}
