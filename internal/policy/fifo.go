// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// FIFO serves queues in the order in which they became busy. Each runs alone
// until it goes idle, even if one that was busy for longer is resumed by hand
// meanwhile. Unlike HPF it does not hold a turn over a gap: a turn ends when its
// queue goes idle.
type FIFO struct{}

// Decide implements Policy.
func (FIFO) Decide(now model.Time, v *View, s *turn) (model.Plan, model.Time) {
	byArrival := turns{key: func(_ int, q *Queue) key { return key{at: int64(q.ChangedAt)} }}
	plan, _, wake := byArrival.decide(now, v, s)
	return plan, wake
}
