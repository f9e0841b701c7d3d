// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/model"
)

// Reasons why a queue does not compete.
const (
	displaced  = "not scheduled: its memory is not on the GPU, or moves; its calls wait in the library"
	unverified = "not verified: the process has not opened this GPU, so the queue does not compete"
	noSuchGPU  = "not scheduled: this host has no GPU at this PCI address"
	manyGPUs   = "not scheduled: the user has too many devices that no driver lists"
)

// maxUnlisted bounds the devices of one user that no driver lists. Nothing confirms that they exist,
// and each is work for the loop. A program can use as many devices as its page has leases.
const maxUnlisted = maxGPUs

// unproved returns why the queues of a client do not compete on a GPU; empty: they do.
func (c *Client) unproved(gpu model.DeviceID) string {
	if c.memory.out {
		return displaced
	}
	if why := c.notOurs(gpu); why != "" {
		return why
	}
	if _, ok := c.caps[gpu]; !ok && !c.Attached && c.claim(gpu) == driver.ClaimUnlisted && c.account.unlisted[gpu] == 0 && len(c.account.unlisted) >= maxUnlisted {
		return manyGPUs
	}
	return ""
}

// notOurs returns why what a client says about a GPU does not count; empty: it does.
func (c *Client) notOurs(gpu model.DeviceID) string {
	if _, ok := c.caps[gpu]; ok || c.Attached {
		return ""
	}
	switch c.claim(gpu) {
	case driver.ClaimVerified:
		return unverified
	case driver.ClaimAbsent:
		return noSuchGPU
	}
	return ""
}

// countUnlisted adds a competing queue to the user's devices that no driver lists, or removes it.
func (c *Client) countUnlisted(q *queue, by int) {
	if q.unlisted == (by > 0) || by > 0 && (c.Attached || c.claim(q.device) != driver.ClaimUnlisted) {
		return
	}
	q.unlisted = by > 0
	if c.account.unlisted == nil {
		c.account.unlisted = map[model.DeviceID]int{}
	}
	if c.account.unlisted[q.device] += by; c.account.unlisted[q.device] == 0 {
		delete(c.account.unlisted, q.device)
	}
}

// admission decides which queues compete. A client writes the GPU of a queue into its page, so a
// process could claim a busy queue on a GPU that it never opened. Where a driver can verify which GPUs
// a process uses, a queue competes only there. Until then its gate is open, unless the process is
// suspended by hand: an honest program does not wait for the proof.
type admission struct {
	engine    *input
	registry  *registry
	activity  *activity
	dispatch  *dispatcher
	unmanaged *unmanaged
	poll      *poller
}

// enter adds a queue to the engine.
func (a *admission) enter(now model.Time, c *Client, q *queue) {
	a.unmanaged.assume(now, c, q.device)
	c.countUnlisted(q, 1)
	a.activity.usage.Enter(now, &q.use, q.device, &c.use)
	a.activity.note(now, q)
	c.counts.competing[q.device]++
	can := c.queueCapability(q)
	a.engine.AddQueue(now, model.Queue{
		ID: q.id, PID: c.PID, User: c.User.Account().Key(), Device: q.device, Hint: c.hints.EffectiveForEngine(&q.hints), Level: q.level, Best: c.best(q.device),
		Slices: can.Slices, Busy: q.busy, Guessed: q.guessed(),
	})
	if a.registry.heldBy(c.PID) != 0 {
		a.engine.SetHeld(now, c.PID, true)
	}
	if q.copies.Only {
		a.engine.SetCopying(now, q.id, true)
	}
}

// leave removes a competing queue from the engine.
func (a *admission) leave(now model.Time, c *Client, q *queue) {
	a.engine.RemoveQueue(now, q.id) // reports the queue's last transition
	a.activity.usage.Leave(now, &q.use, !q.unlisted, maxGPUs)
	c.touch()
	c.countUnlisted(q, -1)
	if c.counts.competing[q.device] > 1 {
		c.counts.competing[q.device]--
	} else {
		delete(c.counts.competing, q.device)
	}
}

// update admits the queues whose GPU is proved by now, and withdraws those whose is not any more.
// The caller updates levels and workers.
func (a *admission) update(c *Client) {
	now := clock.Now()
	for _, q := range c.queues {
		if q.merge.primary != nil {
			continue // its primary queue competes for it
		}
		was := q.unproved
		q.unproved = c.unproved(q.device)
		switch {
		case q.unproved == was:
			continue
		case q.unproved == "":
			a.enter(now, c, q)
		case was == "":
			a.poll.end(now, c, q)
			a.leave(now, c, q)
			a.dispatch.setUnproved(now, c, q)
		}
		a.activity.note(now, q)
		a.engine.dirty = true
		c.markChanged(q.device)
	}
	a.dispatch.updateWorkers(c)
}
