// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// PUP divides the device between processes by their utilization, however many
// queues each has. The queues of a process that have work divide its part.
type PUP struct{}

// Decide implements Policy.
func (PUP) Decide(now model.Time, v *View, s *fairState) (model.Plan, model.Time) {
	s.update(v, utilization, true)
	if v.slicesShare() {
		s.want(v)
		return v.divide(now, v.shareOut(utilization, v.Knobs.Timeslice, v.Knobs.ShareMax), true, &s.rota)
	}
	return s.takeTurns(now, v, utilization)
}
