// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// KEDF serves the K earliest deadlines at the same time, where K is the largest
// that any queue of the device asks for. Those K share the device with slices
// longer than the driver's. With K below 2 it is EDF.
type KEDF struct{ EDF }

// kedfMost bounds K: sharing between more is better left to other policies.
const kedfMost = 64

// Decide implements Policy.
func (k KEDF) Decide(now model.Time, v *View, s *turn) (model.Plan, model.Time) {
	n, width := len(v.Queues), 0
	for i := range v.Queues {
		width = max(width, v.Queues[i].Hint.K)
	}
	width = min(width, kedfMost)
	if width < 2 {
		return k.EDF.Decide(now, v, s)
	}
	first := v.next(0, n, admitted)
	if first < 0 {
		return v.all(model.Verdict{}), model.Never
	}
	chosen := kedfEarliest(v, width)
	// Idle queues keep running while there is room: they start without a resume.
	for i := 0; i < n && len(chosen) < width; i++ {
		if q := &v.Queues[i]; q.Running && q.Admitted && !q.Ready {
			chosen = append(chosen, i)
		}
	}
	if len(chosen) == 0 {
		chosen = append(chosen, first)
	}
	rest := model.Verdict{Limit: v.several(first, n, len(chosen), admitted)}
	plan := v.all(rest)
	turn := model.Verdict{Run: true, Limit: rest.Limit, Slice: v.Knobs.Timeslice}
	if !v.CanSuspend {
		turn.Slice = v.Knobs.ShareMax
	}
	for _, i := range chosen {
		plan[i] = turn
	}
	return plan, model.Never
}

// kedfEarliest returns the ready queues with the earliest deadlines, up to most.
func kedfEarliest(v *View, most int) []int {
	chosen := make([]int, 0, kedfMost)
	for i := range v.Queues {
		if !v.Queues[i].Ready {
			continue
		}
		k, at := byDeadline(i, &v.Queues[i]), len(chosen)
		for at > 0 && k.before(byDeadline(0, &v.Queues[chosen[at-1]])) {
			at--
		}
		if at == most {
			continue
		}
		if len(chosen) < most {
			chosen = append(chosen, 0)
		}
		copy(chosen[at+1:], chosen[at:])
		chosen[at] = i
	}
	return chosen
}
