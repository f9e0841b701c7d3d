// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"fmt"
	"strconv"

	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file is what programs say about themselves: hints in HELLO and while
// they run, about the process or one queue, and the requests they mark.

// requests is a session's count of marked requests.
type requests struct {
	read uint64 // finished requests read from the page so far
	lost uint64 // overwritten before they were read
}

// grant takes away what the user of a session may not have, and notes it.
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
			l.wishPolicy(c, f.PolicyString())
		}
		if f.Hint.Said&wire.HintPriority != 0 {
			c.priorityNote = ""
		}
		f.Hint.Apply(&c.hint)
		l.grant(c, &c.hint)
		if c.mayHint(len(c.queues)) {
			l.rehint(now, c)
		}
		return
	}
	q := c.queues[f.Queue]
	if q == nil || q.generation != f.Generation {
		l.scan(now, c) // its doorbell may not have been heard yet
		if q = c.queues[f.Queue]; q == nil || q.generation != f.Generation {
			return
		}
	}
	change := f.Hint.Change()
	q.set = q.set.Without(&q.said, &change) // who spoke last counts
	q.said = change
	var said model.Hint
	q.said.Apply(&said)
	l.grant(c, &said)
	if c.mayHint(1) {
		l.engine.SetQueueHint(now, q.id, c.told(l.hintOf(c, q)))
		l.dirty = true
	}
}

// hintsPerTick bounds what a program that changes its hints all the time costs the
// loop: queues told to the engine in a heartbeat. The rest waits for the next one.
const hintsPerTick = 256

func (c *Client) mayHint(queues int) bool {
	if c.hinted > 0 && c.hinted+queues > hintsPerTick {
		c.stale = true
		return false
	}
	c.hinted += queues
	return true
}

// tickHints gives a session its share for the next heartbeat.
func (l *Loop) tickHints(now model.Time, c *Client) {
	c.hinted = 0
	if c.stale {
		c.stale = false
		c.hinted = len(c.queues)
		l.rehint(now, c)
	}
}

// rehint tells the engine the hint of every queue of a session again.
func (l *Loop) rehint(now model.Time, c *Client) {
	base := c.told(c.hint)
	base.PerQueue = base.PerQueue || c.streams > 0
	l.engine.SetHint(now, c.PID, base)
	for _, q := range c.queues {
		if h := c.told(l.hintOf(c, q)); h != base {
			l.engine.SetQueueHint(now, q.id, h)
		}
	}
	l.relevel(c)
}

// wishPolicy is a policy asked for by a program: a private daemon is there for it alone.
func (l *Loop) wishPolicy(c *Client, name string) {
	if !l.cfg.Private {
		l.log.Info("policy wish ignored: only a private daemon obeys its programs", "pid", c.PID, "policy", name)
		return
	}
	if err := l.engine.SetPolicy(name); err != nil {
		l.log.Warn("policy wish refused", "pid", c.PID, "policy", name, "err", err)
		return
	}
	l.log.Info("policy changed", "policy", name, "pid", c.PID)
	l.dirty = true
}

// hintOf is the hint in force for a queue: the process's, the stream's own
// priority on top, and then what was said about this queue.
func (l *Loop) hintOf(c *Client, q *queue) model.Hint {
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
	h.Level = c.hint.Level // one level for all: the hardware's queues are the process's
	h.PerQueue = h.PerQueue || c.streams > 0
	return h
}

// told is a hint as the engine gets it: a gang is one user's, so that nobody runs with
// a stranger's priority, or stops a stranger, by using its gang's name.
func (c *Client) told(h model.Hint) model.Hint {
	if h.Gang != "" {
		h.Gang = strconv.Itoa(c.UID) + "/" + h.Gang
	}
	return h
}

// abilities is what can be done to a queue. Streams of one process share its
// hardware queues, so only the gate can tell them apart.
func (l *Loop) abilities(c *Client, q *queue) driver.Capability {
	can := l.capability(c, q.device)
	if (c.streams > 0 || c.hint.PerQueue || c.apart(q.device)) && can.MaxLevel > model.LevelBlock {
		can.MaxLevel = model.LevelBlock
		can.Reason = "the queues of this process are scheduled one by one, which only level 1 can"
	}
	return can
}

// apart says that somebody told the queues of a process on a device apart.
func (c *Client) apart(gpu model.DeviceID) bool {
	if c.onGPU[gpu] < 2 {
		return false // alone there, the hardware's queues are its own
	}
	for _, q := range c.queues {
		if q.device == gpu && !q.set.Empty() {
			return true
		}
	}
	return false
}

// countStream keeps c.streams; true if that changes what its other queues can have.
func (c *Client) countStream(q *queue, by int) bool {
	if !q.stream {
		return false
	}
	before := c.streams > 0
	c.streams += by
	return before != (c.streams > 0)
}

// readMarks takes the requests finished since the last look.
func (l *Loop) readMarks(now model.Time, c *Client) {
	if c.Attached {
		return
	}
	read, lost := c.page.Marks(c.requests.read, func(mark wire.Mark) {
		if mark.End > now {
			return // what a client says about the future counts for nothing
		}
		// Told when it is over, both ends at once: requests may overlap in any order.
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
	l.rehint(l.now(), c)
}
