// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// EDF serves the earliest deadline first. That queue runs alone, and is
// preempted at once by one with an earlier deadline. Queues without a deadline
// come after all others, first come first served.
type EDF struct{}

// Decide implements Policy.
func (EDF) Decide(now model.Time, v *View, s *turn) (model.Plan, model.Time) {
	plan, _, wake := (&turns{key: byDeadline, preempt: true}).decide(now, v, s)
	return plan, wake
}

// byDeadline orders queues by when their work must be done.
func byDeadline(_ int, q *Queue) key {
	if q.Hint.Deadline > 0 {
		return key{at: int64(q.ChangedAt.Add(q.Hint.Deadline))}
	}
	return key{class: 1, at: int64(q.ChangedAt)}
}
