// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// RR serves everybody in turn. Where the device has slices it does that by itself, with
// slices longer than the driver's so that less is lost to switching; where it
// has not, everybody has a quantum. A timeslice hint says how long one's own turn is.
type RR struct{}

var (
	_ Policy = RR{}
	_ Keyer  = RR{}
)

// Name implements Policy.
func (RR) Name() string { return "RR" }

// Decide implements Policy.
func (RR) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	if v.slicesShare() {
		return v.Each(func(i int) model.Verdict {
			slice := v.Knobs.Timeslice
			if s := v.Queues[i].Hint.Timeslice; s > 0 {
				slice = min(max(s, UsefulSlice), LongSlice-time.Millisecond)
			}
			return model.Verdict{Run: true, Slice: slice}
		}), model.Never
	}
	plan, _, wake := turns{length: turnLength, hold: true}.decide(now, v)
	return plan, wake
}

// Key implements Keyer: who waits longest is next.
func (RR) Key(v *View, i int) int64 { return int64(v.Clocks[i].Wait) }
