// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"

	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file handles programs that joined but whose runtime is not hooked: only their hardware queues
// are visible. Such a program gets one queue per GPU, as an attached one does, until it announces
// a queue there itself. It counts as idle until it uses CPU time.

// BareSession is a session with queues whose work can only be guessed.
type BareSession struct {
	ID  model.SessionID
	PID int
}

// Bare returns them, without those that turn out to have hooks after all: what they have on
// GPUs they announce themselves, once they have some.
func (h *Hub) Bare(ctx context.Context) ([]BareSession, error) {
	if h.loop.bare.Load() == 0 {
		return nil, nil
	}
	var out []BareSession
	err := h.call(ctx, func(l *loop) {
		for _, s := range l.sessions {
			if len(s.bare) > 0 && s.page.Counters().HookedCalls > 0 {
				for gpu := range s.bare {
					l.hook(s, gpu)
				}
				l.settle(s)
			}
			if len(s.bare) > 0 {
				out = append(out, BareSession{s.ID, s.PID})
			}
		}
	})
	return out, err
}

// guessed says that nobody tells whether the queue has work.
func (q *queue) guessed() bool { return q.gate == nil }

// enterBare gives a program queues on GPUs where it has hardware queues and announced nothing.
func (l *loop) enterBare(s *Session) {
	for gpu, c := range s.caps {
		if !c.Bare || c.MaxLevel <= model.LevelBlock || s.onGPU[gpu] > 0 || s.hooked[gpu] || len(s.bare) >= maxGPUs {
			continue
		}
		// Beyond the slots of the page, so that none of those is meant.
		id := model.QueueID{Session: s.ID, Index: wire.MaxQueues + uint32(len(s.bare))}
		for s.queues[id.Index] != nil {
			id.Index++
		}
		q := &queue{id: id, device: gpu, generation: 1}
		if s.bare == nil {
			s.bare = map[model.DeviceID]*queue{}
		}
		s.bare[gpu] = q
		l.bare.Add(1)
		l.enter(l.now(), s, q)
	}
	// One that has no hardware queue any more.
	for gpu, q := range s.bare {
		if _, ok := s.caps[gpu]; !ok {
			l.leaveBare(s, q)
		}
	}
	l.settle(s)
}

// hook notes that a program announces queues on a GPU itself.
func (l *loop) hook(s *Session, gpu model.DeviceID) {
	if s.hooked == nil {
		s.hooked = map[model.DeviceID]bool{}
	}
	if len(s.hooked) < maxGPUs {
		s.hooked[gpu] = true
	}
	if q := s.bare[gpu]; q != nil {
		l.leaveBare(s, q)
	}
}

func (l *loop) leaveBare(s *Session, q *queue) { l.removeQueue(l.now(), s, q) }

// forgetBare is removeQueue's part.
func (l *loop) forgetBare(s *Session, q *queue) {
	if s.bare[q.device] == q {
		delete(s.bare, q.device)
		l.bare.Add(-1)
	}
}
