// SPDX-License-Identifier: Apache-2.0

package record

import (
	"cmp"

	"xsched/internal/engine"
	"xsched/internal/model"
)

func byID(a, b *model.Queue) int {
	return cmp.Or(cmp.Compare(a.ID.Session, b.ID.Session), cmp.Compare(a.ID.Index, b.ID.Index))
}

// follow brings the state up to a record.
func (s *state) follow(body []byte) error {
	d := decoder{b: body}
	kind := d.byte()
	switch kind {
	case kindHeader:
		return nil
	case kindGap, kindCheckpoint, kindEnd, kindName:
		s.at += model.Time(d.varint())
		switch kind {
		case kindCheckpoint:
			s.queues, s.inCheckpoint = map[model.QueueID]*model.Queue{}, true
		case kindEnd:
			s.inCheckpoint = false
		case kindName:
			id := model.SessionID(d.uvarint())
			s.names[id] = d.text()
		}
		return d.err
	}
	ev := d.event(engine.EventKind(kind), s.at)
	if d.err != nil {
		return d.err
	}
	s.at = max(s.at, ev.At)
	s.apply(ev)
	return nil
}

// apply is an event's effect on what a checkpoint has to say.
func (s *state) apply(ev *engine.Event) {
	each := func(do func(q *model.Queue)) {
		for _, q := range s.queues {
			if q.PID == ev.PID {
				do(q)
			}
		}
	}
	switch ev.Kind {
	case engine.EventAdd:
		s.queues[ev.ID] = ev.Queue
	case engine.EventRemove:
		delete(s.queues, ev.ID)
		last := true
		for id := range s.queues {
			last = last && id.Session != ev.ID.Session
		}
		if last {
			delete(s.names, ev.ID.Session)
		}
	case engine.EventBusy:
		if q := s.queues[ev.ID]; q != nil {
			q.Feeding.Learn(ev.Length, ev.At.Sub(q.ChangedAt))
			q.Busy, q.ChangedAt = ev.On, ev.At
		}
	case engine.EventHint:
		each(func(q *model.Queue) { q.Hint = *ev.Hint })
	case engine.EventQueueHint:
		if q := s.queues[ev.ID]; q != nil {
			q.Hint = *ev.Hint
			q.Hint.PerQueue = true
		}
	case engine.EventHeld:
		each(func(q *model.Queue) { q.Held = ev.On })
	case engine.EventLevel:
		if q := s.queues[ev.ID]; q != nil {
			q.Level, q.Slices = ev.Level, ev.On
		}
	case engine.EventPolicy:
		s.policy = ev.Name
	case engine.EventMode:
		s.mode, s.level = model.Mode(ev.Name), ev.Level
	case engine.EventQuantum:
		s.quantum = ev.Length
	case engine.EventUnmanaged:
		if ev.On {
			s.unmanaged[ev.Device] = true
		} else {
			delete(s.unmanaged, ev.Device)
		}
	case engine.EventMark, engine.EventDecide:
	}
}
