// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// RR serves all queues in turn. Where the device has slices it does so itself,
// with slices longer than the driver's to lose less to switching. Otherwise each
// queue has a quantum. A timeslice hint sets the length of a queue's own turn.
type RR struct{}

// Decide implements Policy.
func (RR) Decide(now model.Time, v *View, s *turn) (model.Plan, model.Time) {
	if v.slicesShare() {
		plan := v.all(model.Verdict{Run: true, Slice: v.Knobs.Timeslice})
		for i := range plan {
			if s := v.Queues[i].Hint.Timeslice; s > 0 {
				plan[i].Slice = min(max(s, UsefulSlice), LongSlice-time.Millisecond)
			}
		}
		return plan, model.Never
	}
	plan, _, wake := (&turns{
		key:    func(_ int, q *Queue) key { return key{at: int64(q.WaitSince)} },
		length: func(_ int, q *Queue) time.Duration { return v.turnLength(q) },
		hold:   true,
	}).decide(now, v, s)
	return plan, wake
}
