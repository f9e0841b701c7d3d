// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file handles hints about a process or one of its queues.

// grant limits the priorities of a hint to those that the client may have, and keeps the reason.
func (l *Loop) grant(c *Client, hint *model.Hint) {
	l.limitShare(c, hint)
	if note := l.limit(c, c.granted, hint); note != "" {
		c.priorityNote = note
		l.log.Warn("priority not granted", "pid", c.PID, "user", c.User, "reason", note)
	}
}

func (l *Loop) limit(c *Client, granted model.Priority, hint *model.Hint) (note string) {
	limit := l.capOf(c, granted)
	for _, p := range []*model.Priority{&hint.Priority, &hint.LaxPriority, &hint.CriticalPriority} {
		if !limit.On || *p <= limit.Priority || *p == 0 && p != &hint.Priority { // 0: unset
			continue
		}
		if *p > model.PriorityDefault {
			note = refused(c.User, *p, limit)
		}
		*p = limit.Priority
	}
	return note
}

func (l *Loop) takeHint(c *Client, f *wire.HintFrame) {
	if l.clients[c.ID] == nil {
		return
	}
	now := l.now()
	c.touch()
	if f.Queue == wire.QueueAll {
		if f.Hint.Said&wire.HintPolicy != 0 {
			l.requestPolicy(c, f.PolicyString())
		}
		if f.Hint.Said&wire.HintPriority != 0 {
			c.priorityNote = ""
		}
		change := f.Hint.Change()
		c.set = c.set.Without(&model.HintChange{}, &change) // the newer hint wins
		c.said.Merge(&change)
		change.Apply(&c.hint)
		c.fixed.Apply(&c.hint)
		l.grant(c, &c.hint)
		if c.admitHints(len(c.queues)) {
			l.updateHints(now, c)
		}
		return
	}
	q := c.queues[f.Queue]
	if q == nil || q.generation != f.Generation {
		l.scan(now, c) // the hint may arrive before the doorbell
		if q = c.queues[f.Queue]; q == nil || q.generation != f.Generation {
			return
		}
	}
	change := f.Hint.Change()
	c.setQueueHint(q, q.set.Without(&q.said, &change)) // the newer hint wins
	q.said = change
	var said model.Hint
	q.said.Apply(&said)
	l.grant(c, &said)
	if c.admitHints(1) {
		l.engine.SetQueueHint(now, q.id, c.engineHint(l.effectiveHint(c, q)))
		l.dirty = true
	}
}

// hintsPerTick limits the hint updates of one client per heartbeat, counted in queues. Further
// updates wait for the next heartbeat.
const hintsPerTick = 256

func (c *Client) admitHints(queues int) bool {
	if c.hinted > 0 && c.hinted+queues > hintsPerTick {
		c.stale = true
		return false
	}
	c.hinted += queues
	return true
}

// tickHints resets the limit of a client. Updates that have waited follow when its user has time.
func (l *Loop) tickHints(c *Client) {
	c.hinted = 0
	if c.stale && !c.listed {
		c.listed = true
		l.stale = append(l.stale, c)
	}
}

// freshen applies hint updates that have waited, within the users' shares.
func (l *Loop) freshen(now model.Time) {
	if len(l.stale) == 0 {
		return
	}
	later, begin := l.stale[:0], now
	for i, c := range l.stale {
		if c.account == nil || !c.stale { // it has left, or an update came first
			c.listed = false
			continue
		}
		if begin.Sub(now) >= freshenPerPass || l.shared() && !c.account.within(l.window) {
			later = append(later, l.stale[i])
			continue
		}
		c.stale, c.listed = false, false
		c.hinted = len(c.queues)
		l.updateHints(begin, c)
		end := l.now()
		l.bills.request(c.inbox, end.Sub(begin))
		begin = end
	}
	clear(l.stale[len(later):])
	l.stale = later
}

// updateHints reports the effective hint of every queue of a client to the engine.
func (l *Loop) updateHints(now model.Time, c *Client) {
	c.touch()
	base := c.engineHint(c.hint)
	base.Cap, base.Pool = l.capOf(c, c.granted), c.pool()
	c.toldCap = base.Cap
	base.PerQueue = base.PerQueue || c.streams > 0
	l.engine.SetHint(now, c.PID, base)
	for _, q := range c.queues {
		if q.host != nil {
			continue
		}
		if h := c.engineHint(l.effectiveHint(c, q)); h != base {
			l.engine.SetQueueHint(now, q.id, h)
		}
	}
	l.updateLevels(c)
}

// requestPolicy changes the policy on request of a program, if the daemon is private.
func (l *Loop) requestPolicy(c *Client, name string) {
	if !l.cfg.Private {
		l.log.Info("policy request ignored: the daemon is not private", "pid", c.PID, "user", c.User, "policy", name)
		return
	}
	if err := l.engine.SetPolicy(name); err != nil {
		l.log.Warn("policy request refused", "pid", c.PID, "policy", name, "err", err)
		return
	}
	l.publishConfig()
	l.log.Info("policy changed", "policy", name, "pid", c.PID)
	l.dirty = true
}

// effectiveHint returns the hint in force for a queue: the process's hint, then the priority of the
// stream, then hints about this queue.
func (l *Loop) effectiveHint(c *Client, q *queue) model.Hint {
	h := c.hint
	if q.stream {
		if h.Priority != model.PriorityNever {
			h.Priority = min(max(h.Priority+model.Priority(q.offset), model.PriorityMin), model.PriorityMax)
		}
	}
	q.said.Apply(&h)
	l.limitShare(c, &h)
	l.limit(c, c.granted, &h)
	q.set.Apply(&h)
	c.fixed.Apply(&h)
	q.pinned.Apply(&h)
	if (h.Utilization == 0 || c.terms.Grant.Share != 0) && !q.pinned.Has("utilization") {
		l.limitShare(c, &h)
	}
	l.limit(c, max(c.granted, q.granted), &h)
	h.Cap = l.capOf(c, max(c.granted, q.granted))
	if !q.pinned.Has("utilization") {
		h.Pool = c.pool()
	}
	h.Level = c.hint.Level // hardware queues belong to the process, so all its queues share one level
	h.PerQueue = h.PerQueue || c.streams > 0
	if c.ceiling == nil && q.granted <= model.PriorityDefault { // root's own word about the process counts
		c.terms.Grant.lower(q.device, &h)
	}
	return h
}

// engineHint qualifies the gang of a hint with the user. Otherwise a user could join another user's
// gang by name, and use its priority or suspend it.
func (c *Client) engineHint(h model.Hint) model.Hint {
	switch {
	case h.Gang == "":
	case c.terms.Grant.Owner != "" && !c.pinned.Has("gang"):
		h.Gang = c.terms.Grant.Owner + "/" + h.Gang
	default:
		h.Gang = c.User.Key() + "/" + h.Gang
	}
	return h
}

// queueCapability returns what the drivers can do to a queue. Streams of one process share its
// hardware queues, so only the gate preempts them separately.
func (l *Loop) queueCapability(c *Client, q *queue) driver.Capability {
	can := l.deviceCapability(c, q.device)
	if (c.streams > 0 || c.hint.PerQueue || c.hasQueueHints(q.device)) && can.MaxLevel > model.LevelBlock {
		can.MaxLevel = model.LevelBlock
		can.Reason = "the queues of this process are scheduled one by one, which only level 1 supports"
	}
	return can
}

// hasQueueHints reports whether a control client has set a hint for one of several queues of a
// client on a device.
func (c *Client) hasQueueHints(gpu model.DeviceID) bool {
	return c.onGPU[gpu] > 1 && c.apart[gpu] > 0 // a single queue has the hardware queues to itself
}

// setQueueHint replaces the hint that a control client has set for a queue, and counts such queues.
func (c *Client) setQueueHint(q *queue, set model.HintChange) {
	if had, has := !q.set.Empty(), !set.Empty(); has && !had {
		c.apart[q.device]++
	} else if had && !has {
		if c.apart[q.device]--; c.apart[q.device] == 0 {
			delete(c.apart, q.device)
		}
	}
	q.set = set
}

// countStream updates c.streams. It returns true if the capabilities of other queues change.
func (c *Client) countStream(q *queue, by int) bool {
	if !q.stream {
		return false
	}
	before := c.streams > 0
	c.streams += by
	return before != (c.streams > 0)
}

func (l *Loop) setNice(c *Client, nice int) {
	if l.clients[c.ID] == nil || c.hint.Nice == nice {
		return
	}
	c.hint.Nice = nice
	l.updateHints(l.now(), c)
}
