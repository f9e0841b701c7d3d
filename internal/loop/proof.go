// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/driver"
	"xsched/internal/model"
)

// This file decides which queues compete. A client writes the GPU of a queue into its page, so a
// process could claim a busy queue on a GPU that it never opened. Where a driver can verify which GPUs
// a process uses, a queue competes only there. Until then its gate is open, unless the process is
// suspended by hand: an honest program does not wait for the proof.

// unprovedReason is shown for a queue that does not compete.
const unprovedReason = "not verified: the process has not opened this GPU, so the queue does not compete"

// proved reports whether the queues of a client may compete on a GPU.
func (l *Loop) proved(c *Client, gpu model.DeviceID) bool {
	if _, ok := c.caps[gpu]; ok || c.Attached {
		return true
	}
	v, ok := c.session.Hardware().(driver.Verifier)
	return !ok || !v.Verifies(gpu)
}

// compete adds a queue to the engine.
func (l *Loop) compete(now model.Time, c *Client, q *queue) {
	l.assumeOutsiders(now, c, q.device)
	c.competing[q.device]++
	can := l.queueCapability(c, q)
	l.engine.AddQueue(now, model.Queue{
		ID: q.id, PID: c.PID, User: c.userKey(), Device: q.device, Hint: c.engineHint(l.effectiveHint(c, q)), Level: q.level, Best: l.best(c, q.device),
		Slices: can.Slices, Busy: q.busy, Guessed: q.guessed(),
	})
	if l.heldBy(c.PID) != 0 {
		l.engine.SetHeld(now, c.PID, true)
	}
	if q.copies.Only {
		l.engine.SetCopying(now, q.id, true)
	}
}

// leave removes a competing queue from the engine.
func (l *Loop) leave(now model.Time, c *Client, q *queue) {
	if l.engine.RemoveQueue(now, q.id); c.competing[q.device] > 1 {
		c.competing[q.device]--
	} else {
		delete(c.competing, q.device)
	}
}

// setUnproved sets the gate of a queue that does not compete. A suspension by hand holds there too.
func (l *Loop) setUnproved(now model.Time, c *Client, q *queue) {
	was := q.want.Suspend != 0
	if q.want = (model.Desired{Queue: q.id}); c.stopped() && !l.stopping {
		q.want.Suspend = model.LevelBlock
	}
	l.accountSuspension(now, c, q, was)
	if q.gate != nil {
		l.setGate(c, q) // and those of the queues folded into it
	}
}

// updateProof admits the queues whose GPU is proved by now, and withdraws those whose is not any more.
// The caller updates levels and workers.
func (l *Loop) updateProof(c *Client) {
	now := l.now()
	for _, q := range c.queues {
		if q.host != nil || q.unproved != l.proved(c, q.device) {
			continue // its host competes for it, or nothing has changed
		}
		if q.unproved = !q.unproved; !q.unproved {
			l.compete(now, c, q)
		} else {
			l.unquiet(now, c, q)
			l.leave(now, c, q)
			l.setUnproved(now, c, q)
		}
		l.note(now, q)
		l.dirty = true
		c.markChanged(q.device)
	}
	l.updateWorkers(c)
}
