// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// UP divides the device between queues by their utilisation. Where the device has slices
// they do it, and nobody is ever stopped; where it has not, the queue that had least for its
// share has the next turn. Shares are weights: what one does not use the others have.
type UP struct{}

var (
	_ Policy  = UP{}
	_ Keyer   = UP{}
	_ Charger = UP{}
)

// Name implements Policy.
func (UP) Name() string { return "UP" }

// Decide implements Policy.
func (UP) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	if v.slicesShare() {
		v.want()
		return v.shareOut(utilization, v.Knobs.Timeslice, v.Knobs.ShareMax), model.Never
	}
	return fair(now, v, utilization)
}

// Key implements Keyer.
func (UP) Key(v *View, i int) int64 { return fairKey(v, i) }

// Charge implements Charger.
func (UP) Charge(v *View, i int, used time.Duration) { fairCharge(v, i, used, utilization(v, i)) }
