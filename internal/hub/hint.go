// SPDX-License-Identifier: Apache-2.0

package hub

import (
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

// introduceHint takes over the hint of HELLO.
func (h *Hub) introduceHint(s *Session, hello *wire.Hello) {
	hello.Hint.Apply(&s.hint)
	s.hint.Nice = niceOf(s.PID)
	h.grant(s, &s.hint)
	if hello.Scheduler == wire.SchedulerLocal {
		s.policyWish = hello.PolicyString()
	}
}

// grant takes away what the user of a session may not have, and notes it.
func (h *Hub) grant(s *Session, hint *model.Hint) {
	if note := h.limit(s, s.granted, hint); note != "" {
		s.PriorityNote = note
		h.log.Warn("priority not granted", "pid", s.PID, "uid", s.UID, "reason", note)
	}
}

func (h *Hub) limit(s *Session, granted model.Priority, hint *model.Hint) (note string) {
	for _, p := range []*model.Priority{&hint.Priority, &hint.LaxPriority, &hint.CriticalPriority} {
		if n := h.mayHave(s.UID, *p); n != "" && *p > granted {
			note = n
			*p = max(model.PriorityDefault, granted)
		}
	}
	return note
}

// hintFrame is a program that changes its hints while it runs.
func (s *Session) hintFrame(packet []byte) error {
	f, err := wire.DecodeHint(packet)
	if err != nil {
		return err
	}
	return s.hub.post(s.ctx, func(l *loop) { l.takeHint(s, f) })
}

func (l *loop) takeHint(s *Session, f *wire.HintFrame) {
	if l.sessions[s.ID] == nil {
		return
	}
	now := l.now()
	if f.Queue == wire.QueueAll {
		if f.Hint.Said&wire.HintPolicy != 0 {
			l.wishPolicy(s, f.PolicyString())
		}
		if f.Hint.Said&wire.HintPriority != 0 {
			s.PriorityNote = ""
		}
		f.Hint.Apply(&s.hint)
		l.hub.grant(s, &s.hint)
		if s.mayHint(len(s.queues)) {
			l.rehint(now, s)
		}
		return
	}
	q := s.queues[f.Queue]
	if q == nil || q.generation != f.Generation {
		l.scan(now, s) // its doorbell may not have been heard yet
		if q = s.queues[f.Queue]; q == nil || q.generation != f.Generation {
			return
		}
	}
	change := f.Hint.Change()
	q.set = q.set.Without(&q.said, &change) // who spoke last counts
	q.said = change
	var said model.Hint
	q.said.Apply(&said)
	l.hub.grant(s, &said)
	if s.mayHint(1) {
		l.engine.SetQueueHint(now, q.id, s.told(l.hintOf(s, q)))
		l.dirty = true
	}
}

// hintsPerTick bounds what a program that changes its hints all the time costs the
// loop: queues told to the engine in a heartbeat. The rest waits for the next one.
const hintsPerTick = 256

func (s *Session) mayHint(queues int) bool {
	if s.hinted > 0 && s.hinted+queues > hintsPerTick {
		s.stale = true
		return false
	}
	s.hinted += queues
	return true
}

// tickHints gives a session its share for the next heartbeat.
func (l *loop) tickHints(now model.Time, s *Session) {
	s.hinted = 0
	if s.stale {
		s.stale = false
		s.hinted = len(s.queues)
		l.rehint(now, s)
	}
}

// rehint tells the engine the hint of every queue of a session again.
func (l *loop) rehint(now model.Time, s *Session) {
	base := s.told(s.hint)
	base.PerQueue = base.PerQueue || s.streams > 0
	l.engine.SetHint(now, s.PID, base)
	for _, q := range s.queues {
		if h := s.told(l.hintOf(s, q)); h != base {
			l.engine.SetQueueHint(now, q.id, h)
		}
	}
	l.relevel(s)
}

// wishPolicy is a policy asked for by a program: a private daemon is there for it alone.
func (l *loop) wishPolicy(s *Session, name string) {
	if !l.hub.cfg.Private {
		l.hub.log.Info("policy wish ignored: only a private daemon obeys its programs", "pid", s.PID, "policy", name)
		return
	}
	if err := l.engine.SetPolicy(name); err != nil {
		l.hub.log.Warn("policy wish refused", "pid", s.PID, "policy", name, "err", err)
		return
	}
	l.hub.log.Info("policy changed", "policy", name, "pid", s.PID)
	l.dirty = true
}

// hintOf is the hint in force for a queue: the process's, the stream's own
// priority on top, and then what was said about this queue.
func (l *loop) hintOf(s *Session, q *queue) model.Hint {
	h := s.hint
	if q.stream {
		if h.Priority != model.PriorityNever {
			h.Priority = min(max(h.Priority+model.Priority(q.offset), model.PriorityMin), model.PriorityMax)
		}
	}
	q.said.Apply(&h)
	l.hub.limit(s, s.granted, &h)
	q.set.Apply(&h)
	l.hub.limit(s, max(s.granted, q.granted), &h)
	h.Level = s.hint.Level // one level for all: the hardware's queues are the process's
	h.PerQueue = h.PerQueue || s.streams > 0
	return h
}

// told is a hint as the engine gets it: a gang is one user's, so that nobody runs with
// a stranger's priority, or stops a stranger, by using its gang's name.
func (s *Session) told(h model.Hint) model.Hint {
	if h.Gang != "" {
		h.Gang = strconv.Itoa(s.UID) + "/" + h.Gang
	}
	return h
}

// abilities is what can be done to a queue. Streams of one process share its
// hardware queues, so only the gate can tell them apart.
func (l *loop) abilities(s *Session, q *queue) driver.Capability {
	c := l.capability(s, q.device)
	if (s.streams > 0 || s.hint.PerQueue || s.apart(q.device)) && c.MaxLevel > model.LevelBlock {
		c.MaxLevel = model.LevelBlock
		c.Reason = "the queues of this process are scheduled one by one, which only level 1 can"
	}
	return c
}

// apart says that somebody told the queues of a process on a device apart.
func (s *Session) apart(gpu model.DeviceID) bool {
	if s.onGPU[gpu] < 2 {
		return false // alone there, the hardware's queues are its own
	}
	for _, q := range s.queues {
		if q.device == gpu && !q.set.Empty() {
			return true
		}
	}
	return false
}

// countStream keeps s.streams; true if that changes what its other queues can have.
func (s *Session) countStream(q *queue, by int) bool {
	if !q.stream {
		return false
	}
	before := s.streams > 0
	s.streams += by
	return before != (s.streams > 0)
}

// readMarks takes the requests finished since the last look.
func (l *loop) readMarks(now model.Time, s *Session) {
	if s.Attached {
		return
	}
	read, lost := s.page.Marks(s.requests.read, func(mark wire.Mark) {
		if mark.End > now {
			return // what a client says about the future counts for nothing
		}
		// Told when it is over, both ends at once: requests may overlap in any order.
		l.engine.MarkRequest(mark.Begin, s.PID, true)
		l.engine.MarkRequest(mark.End, s.PID, false)
		l.dirty = true
	})
	s.requests.read = max(read, s.requests.read)
	s.requests.lost += lost
}
