// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"fmt"
	"strconv"

	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file handles the input of programs: hints about the process or one queue, and marked
// requests.

// requests counts the marked requests of a client.
type requests struct {
	read uint64 // finished requests read from the page so far
	lost uint64 // overwritten before they were read
}

// grant limits the priorities of a hint to those that the client may have, and keeps the reason.
func (l *Loop) grant(c *Client, hint *model.Hint) {
	if note := l.limit(c, c.granted, hint); note != "" {
		c.priorityNote = note
		l.log.Warn("priority not granted", "pid", c.PID, "uid", c.UID, "reason", note)
	}
}

func (l *Loop) limit(c *Client, granted model.Priority, hint *model.Hint) (note string) {
	for _, p := range []*model.Priority{&hint.Priority, &hint.LaxPriority, &hint.CriticalPriority} {
		if n := l.MayHave(c.UID, *p); n != "" && *p > granted {
			note = n
			*p = max(model.PriorityDefault, granted)
		}
	}
	return note
}

func (l *Loop) takeHint(c *Client, f *wire.HintFrame) {
	if l.clients[c.ID] == nil {
		return
	}
	now := l.now()
	if f.Queue == wire.QueueAll {
		if f.Hint.Said&wire.HintPolicy != 0 {
			l.requestPolicy(c, f.PolicyString())
		}
		if f.Hint.Said&wire.HintPriority != 0 {
			c.priorityNote = ""
		}
		f.Hint.Apply(&c.hint)
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
	q.set = q.set.Without(&q.said, &change) // the newer hint wins
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

// tickHints resets the limit of a client and applies updates that have waited.
func (l *Loop) tickHints(now model.Time, c *Client) {
	c.hinted = 0
	if c.stale {
		c.stale = false
		c.hinted = len(c.queues)
		l.updateHints(now, c)
	}
}

// updateHints reports the effective hint of every queue of a client to the engine.
func (l *Loop) updateHints(now model.Time, c *Client) {
	base := c.engineHint(c.hint)
	base.PerQueue = base.PerQueue || c.streams > 0
	l.engine.SetHint(now, c.PID, base)
	for _, q := range c.queues {
		if h := c.engineHint(l.effectiveHint(c, q)); h != base {
			l.engine.SetQueueHint(now, q.id, h)
		}
	}
	l.updateLevels(c)
}

// requestPolicy changes the policy on request of a program, if the daemon is private.
func (l *Loop) requestPolicy(c *Client, name string) {
	if !l.cfg.Private {
		l.log.Info("policy request ignored: the daemon is not private", "pid", c.PID, "policy", name)
		return
	}
	if err := l.engine.SetPolicy(name); err != nil {
		l.log.Warn("policy request refused", "pid", c.PID, "policy", name, "err", err)
		return
	}
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
	l.limit(c, c.granted, &h)
	q.set.Apply(&h)
	l.limit(c, max(c.granted, q.granted), &h)
	h.Level = c.hint.Level // hardware queues belong to the process, so all its queues share one level
	h.PerQueue = h.PerQueue || c.streams > 0
	return h
}

// engineHint qualifies the gang of a hint with the user. Otherwise a user could join another user's
// gang by name, and use its priority or suspend it.
func (c *Client) engineHint(h model.Hint) model.Hint {
	if h.Gang != "" {
		h.Gang = strconv.Itoa(c.UID) + "/" + h.Gang
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
	if c.onGPU[gpu] < 2 {
		return false // a single queue has the hardware queues to itself
	}
	for _, q := range c.queues {
		if q.device == gpu && !q.set.Empty() {
			return true
		}
	}
	return false
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

// readRequests reads the requests finished since the last call.
func (l *Loop) readRequests(now model.Time, c *Client) {
	if c.Attached {
		return
	}
	read, lost := c.page.Marks(c.requests.read, func(mark wire.Mark) {
		if mark.End > now {
			return // ignore timestamps in the future
		}
		// Report both ends after the request, because requests may overlap in any order.
		l.engine.MarkRequest(mark.Begin, c.PID, true)
		l.engine.MarkRequest(mark.End, c.PID, false)
		l.dirty = true
	})
	c.requests.read = max(read, c.requests.read)
	c.requests.lost += lost
}

// MayHave returns why a user may not have a priority; empty: the user may.
func (l *Loop) MayHave(uid int, p model.Priority) string {
	if p > model.PriorityDefault && l.cfg.UID == 0 && uid != 0 && !l.cfg.AllowPriority {
		return fmt.Sprintf("priority %d was requested: a root daemon grants priorities above 0 only to root", p)
	}
	return ""
}

func (l *Loop) setNice(c *Client, nice int) {
	if l.clients[c.ID] == nil || c.hint.Nice == nice {
		return
	}
	c.hint.Nice = nice
	l.updateHints(l.now(), c)
}
