// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// UP divides the device between queues by their utilization. Where the device
// has slices, they do it and no queue is ever suspended. Otherwise the queue
// that had least for its share has the next turn. Shares are weights: the others
// get what one does not use.
type UP struct{}

// Decide implements Policy.
func (UP) Decide(now model.Time, v *View, s *fairState) (model.Plan, model.Time) {
	s.update(v, utilization, false)
	if v.slicesShare() {
		s.want(v)
		return v.divide(now, v.shareOut(utilization, v.Knobs.Timeslice, v.Knobs.ShareMax), false, &s.rota)
	}
	return s.takeTurns(now, v, utilization)
}
