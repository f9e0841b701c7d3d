// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// PUP divides the device between processes by their utilisation, however many
// queues each has: the queues of a process that have work share its part.
type PUP struct{}

var (
	_ Policy  = PUP{}
	_ Keyer   = PUP{}
	_ Charger = PUP{}
)

// Name implements Policy.
func (PUP) Name() string { return "PUP" }

// Decide implements Policy.
func (PUP) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	if v.slicesShare() {
		v.want()
		return pupShares(v, v.Knobs.Timeslice), model.Never
	}
	return fair(now, v, utilization)
}

// Key implements Keyer.
func (PUP) Key(v *View, i int) int64 { return fairKey(v, i) }

// Charge implements Charger: what one queue had all queues of its process had.
func (PUP) Charge(v *View, i int, used time.Duration) {
	for j := i; ; {
		fairCharge(v, j, used, utilization(v, i))
		v.Rekey(j)
		if j = int(v.Kin[j]); j == i {
			return
		}
	}
}

// pupShares gives every queue the slice of its process, and those with working
// siblings their part of it. The smallest is least.
func pupShares(v *View, least time.Duration) model.Plan {
	plan := v.shareOut(utilization, least, v.Knobs.ShareMax)
	for _, i := range v.Kindred {
		if n := v.readyKin(i); n > 1 && v.Ready.Has(i) {
			verdict := plan[i]
			verdict.Slice = max(UsefulSlice, verdict.Slice/time.Duration(n))
			v.Set(i, verdict)
		}
	}
	return plan
}
