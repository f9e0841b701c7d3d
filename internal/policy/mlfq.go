// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// MLFQ is a multi-level feedback queue: it learns which queues are interactive.
// Every queue begins in the top tier and sinks to the next when it uses up the
// time of its tier. A lower tier runs only while no higher one has work, in
// longer turns. After every Boost all queues return to the top, so that a
// program that changes its behaviour is noticed.
type MLFQ struct{}

const mlfqTiers = 4

type mlfqState struct {
	turn   turn
	boost  model.Time // the next one
	queues perQueue[mlfqQueue]
}

type mlfqQueue struct {
	got  time.Duration // Queue.Got up to which the queue is charged
	tier int
	used time.Duration // of its tier
}

// Decide implements Policy.
func (MLFQ) Decide(now model.Time, v *View, s *mlfqState) (model.Plan, model.Time) {
	s.queues.align(v, func(q *Queue) mlfqQueue { return mlfqQueue{got: q.Got} })
	for i := range v.Queues {
		if got := v.Queues[i].Got; got != s.queues.of[i].got {
			s.queues.of[i].charge(v, got)
		}
	}
	if now >= s.boost {
		s.boost = now.Add(v.Knobs.Boost)
		for i := range s.queues.of {
			s.queues.of[i] = mlfqQueue{got: s.queues.of[i].got}
		}
	}
	plan, i, wake := (&turns{
		key: func(i int, q *Queue) key {
			return key{class: int64(s.queues.of[i].tier), at: int64(q.WaitSince)}
		},
		preempt: true, byClass: true, hold: true,
		length: func(i int, _ *Queue) time.Duration { return s.queues.of[i].turn(v) },
	}).decide(now, v, &s.turn)
	if i >= 0 && wake != model.Never {
		wake = min(wake, s.boost)
	}
	return plan, wake
}

// charge adds the GPU time up to got, and lowers the tier when its time is used
// up. A microsecond of tolerance avoids a wake-up for a rounding error.
func (m *mlfqQueue) charge(v *View, got time.Duration) {
	m.used += got - m.got
	m.got = got
	for m.tier < mlfqTiers-1 && m.used+time.Microsecond >= mlfqAllotment(v, m.tier) {
		m.used = max(0, m.used-mlfqAllotment(v, m.tier))
		m.tier++
	}
}

// turn returns a queue's remaining time in its tier.
func (m *mlfqQueue) turn(v *View) time.Duration {
	if m.tier == mlfqTiers-1 {
		return mlfqAllotment(v, m.tier)
	}
	return max(time.Millisecond, mlfqAllotment(v, m.tier)-m.used)
}

// mlfqAllotment is the time of a tier: a fifth of a quantum at the top, twice as
// much in each tier below.
func mlfqAllotment(v *View, tier int) time.Duration { return v.Knobs.Quantum / 5 << tier }
