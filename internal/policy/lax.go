// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// LAX serves the least laxity first. A queue may be deferred until its laxity
// runs out and has its lax priority until then. After that it is critical and
// has its critical priority. The highest of these priorities runs alone; of
// equals, the queue that must start first.
//
// A laxity without priorities means: the queue's own priority, and the highest
// once it is critical. A deadline alone counts as a laxity of that length.
type LAX struct{}

// Decide implements Policy.
func (LAX) Decide(now model.Time, v *View, s *turn) (model.Plan, model.Time) {
	next := model.Never // when the first deferred queue becomes critical
	for i := range v.Queues {
		q := &v.Queues[i]
		if at := laxUntil(q); q.Ready && at > now {
			next = min(next, at)
		}
	}
	plan, _, wake := (&turns{
		key:     func(_ int, q *Queue) key { return laxKey(now, q) },
		preempt: true,
	}).decide(now, v, s)
	return plan, min(wake, next)
}

// laxKey orders by priority. Of equal priorities critical queues come first,
// then those without a laxity, then those that may still be deferred.
func laxKey(now model.Time, q *Queue) key {
	h, at := &q.Hint, laxUntil(q)
	prio, deferred := h.Priority, int64(0)
	ownPriorities := h.LaxPriority != 0 || h.CriticalPriority != 0
	switch critical := q.Ready && now >= at; {
	case at == model.Never:
	case critical && ownPriorities:
		prio = h.CriticalPriority
	case critical:
		prio = model.PriorityMax
	default:
		deferred = 1
		if ownPriorities {
			prio = h.LaxPriority
		}
	}
	return key{class: 2*int64(model.PriorityMax-prio) + deferred, at: int64(at)}
}

// laxUntil is until when the work of a queue may be deferred.
func laxUntil(q *Queue) model.Time {
	switch {
	case q.Hint.Laxity > 0:
		return q.ChangedAt.Add(q.Hint.Laxity)
	case q.Hint.Deadline > 0:
		return q.ChangedAt.Add(q.Hint.Deadline)
	}
	return model.Never
}
