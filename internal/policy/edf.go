// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"

	"xsched/internal/model"
)

// EDF serves the earliest deadline first: who has work with the earliest
// deadline runs alone, and gives way at once to one that is earlier still. Who
// said no deadline comes after all that did, first come first served.
type EDF struct{}

var (
	_ Policy = EDF{}
	_ Keyer  = EDF{}
)

// Name implements Policy.
func (EDF) Name() string { return "EDF" }

// Decide implements Policy.
func (EDF) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	plan, _, wake := turns{preempt: true}.decide(now, v)
	return plan, wake
}

// Key implements Keyer.
func (EDF) Key(v *View, i int) int64 { return deadline(&v.Queues[i]) }

// deadline is when the work of a queue must be done; without one, an order
// behind all that have one.
func deadline(q *model.Queue) int64 {
	if q.Hint.Deadline > 0 {
		return int64(q.ChangedAt.Add(q.Hint.Deadline))
	}
	return math.MaxInt64/2 + int64(q.ChangedAt)
}
