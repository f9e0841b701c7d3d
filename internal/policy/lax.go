// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"

	"xsched/internal/model"
)

// LAX serves the least laxity first. Work may be put off for as long as its
// laxity says and has its lax priority till then; after that it is critical and
// has its critical priority. The highest of these priorities runs alone; of equals
// the one that has to start first.
//
// A hint that says a laxity and no priorities means: my own priority, and the highest
// when I can't wait any longer. One that says a deadline only may be put off till then.
//
// Queue.Memo[0] is the time since which a queue is critical; View.Memo[0] is no later than when
// the next one will be.
type LAX struct{}

var (
	_ Policy = LAX{}
	_ Keyer  = LAX{}
)

// Name implements Policy.
func (LAX) Name() string { return "LAX" }

// Decide implements Policy.
func (LAX) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	if int64(now) >= v.Memo[0] {
		v.Memo[0] = math.MaxInt64
		for w, word := range v.Ready {
			for ; word != 0; word &= word - 1 {
				i := first(w, word)
				if v.Keys[i]&laxBit == 0 {
					continue
				}
				if at := v.Keys[i] & (laxBit - 1) * 1000; at > int64(now) {
					v.Memo[0] = min(v.Memo[0], at)
				} else {
					v.Queues[i].Memo[0] = int64(critical(&v.Queues[i]))
					v.Rekey(i)
				}
			}
		}
	}
	plan, _, wake := turns{preempt: true}.decide(now, v)
	return plan, min(wake, model.Time(v.Memo[0]))
}

// laxBit is set in the keys of those that may be put off; below it is when they can't be
// any longer, in microseconds, and above it the priority.
const laxBit = 1 << 48

// Key implements Keyer: priority first, then when the work has to start.
func (LAX) Key(v *View, i int) int64 {
	q := &v.Queues[i]
	at := critical(q)
	if at == model.Never {
		return int64(model.PriorityMax-q.Hint.Priority)<<49 | (laxBit - 1)
	}
	prio, bit := q.Hint.Priority, int64(0)
	said := q.Hint.LaxPriority != 0 || q.Hint.CriticalPriority != 0
	switch isCritical := q.Memo[0] == int64(at); {
	case isCritical && said:
		prio = q.Hint.CriticalPriority
	case isCritical:
		prio = model.PriorityMax
	default:
		bit = laxBit
		if said {
			prio = q.Hint.LaxPriority
		}
		if v.Ready.Has(i) {
			v.Memo[0] = min(v.Memo[0], int64(at))
		}
	}
	return int64(model.PriorityMax-prio)<<49 | bit | min(int64(at+999)/1000, laxBit-1)
}

// critical is when the work of a queue can't be put off any longer.
func critical(q *model.Queue) model.Time {
	switch {
	case q.Hint.Laxity > 0:
		return q.ChangedAt.Add(q.Hint.Laxity)
	case q.Hint.Deadline > 0:
		return q.ChangedAt.Add(q.Hint.Deadline)
	}
	return model.Never
}
