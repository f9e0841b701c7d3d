// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"time"

	"xsched/internal/model"
)

// CFS is completely fair: everybody has GPU time in proportion to its weight,
// in rounds that are as short as switching allows. Weights are utilisations where they
// are said, and otherwise follow the CPU nice value: one step is a quarter more or less.
//
// Where the device has slices they are a round of cfsRound between all of them, but none
// is shorter than cfsLeast: quick with a few tenants, and with many a
// switch costs 7 %. UP has longer ones and loses less.
type CFS struct{}

const (
	cfsRound = 24 * time.Millisecond
	cfsLeast = 3 * time.Millisecond
)

var (
	_ Policy  = CFS{}
	_ Keyer   = CFS{}
	_ Charger = CFS{}
)

// Name implements Policy.
func (CFS) Name() string { return "CFS" }

// Decide implements Policy.
func (CFS) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	if v.slicesShare() {
		v.want()
		return v.shareOut(cfsWeight, cfsSlice(v), v.Knobs.ShareMax), model.Never
	}
	return fair(now, v, cfsWeight)
}

// Key implements Keyer.
func (CFS) Key(v *View, i int) int64 { return fairKey(v, i) }

// Charge implements Charger.
func (CFS) Charge(v *View, i int, used time.Duration) { fairCharge(v, i, used, cfsWeight(v, i)) }

// cfsSlice is the slice of the lightest.
func cfsSlice(v *View) time.Duration {
	if len(v.each) == len(v.plan) {
		return 0 // the slices are there already
	}
	sum, least := 0, 0
	for i := range v.Queues {
		if !v.Queues[i].Eligible() {
			continue
		}
		w := cfsWeight(v, i)
		sum += w
		if least == 0 || w < least {
			least = w
		}
	}
	if sum == 0 {
		return cfsLeast
	}
	return max(cfsLeast, cfsRound*time.Duration(least)/time.Duration(sum))
}

// cfsWeight is 100 for a process that said nothing.
func cfsWeight(v *View, i int) int {
	h := &v.Queues[i].Hint
	if h.Utilization > 0 || h.Nice == 0 {
		return utilization(v, i)
	}
	return max(1, int(math.Round(100*math.Pow(1.25, -float64(h.Nice)))))
}
