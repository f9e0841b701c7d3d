// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// FIFO serves first who came first: of the ready queues of a device the one
// that is busy for the longest time runs alone till it goes idle. It keeps its turn
// also against one that was released from a hold and is busy for longer. Unlike
// HPF it does not hold a turn over a gap: going idle is what ends a turn here.
type FIFO struct{}

var (
	_ Policy = FIFO{}
	_ Keyer  = FIFO{}
)

// Name implements Policy.
func (FIFO) Name() string { return "FIFO" }

// Decide implements Policy.
func (FIFO) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	plan, _, wake := turns{}.decide(now, v)
	return plan, wake
}

// Key implements Keyer.
func (FIFO) Key(v *View, i int) int64 { return int64(v.Queues[i].ChangedAt) }
