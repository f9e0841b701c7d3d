// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// shareOut compiles weights into slices: everybody runs, the hardware divides
// the device in proportion to the slices, and who is idle gives its part away.
// The lightest has least, the heaviest no more than most; between the two the lightest
// gives way, down to UsefulSlice, because a long slice is what everybody else waits for.
// A switch is not part of a slice and costs all of them alike, so the ratio
// of the slices is the ratio of the shares.
func (v *View) shareOut(weight func(v *View, i int) int, least, most time.Duration) model.Plan {
	unit := 0.0 // slice of weight 1
	return v.Each(func(i int) model.Verdict {
		if unit == 0 {
			unit = v.shareUnit(weight, least, most)
		}
		slice := time.Duration(unit*float64(weight(v, i))) / time.Microsecond * time.Microsecond
		return model.Verdict{Run: true, Slice: max(slice, UsefulSlice)}
	})
}

func (v *View) shareUnit(weight func(v *View, i int) int, least, most time.Duration) float64 {
	low, high := 0, 0
	for i := range v.Queues {
		if !v.Queues[i].Eligible() { // a gang that waits still counts: slices stay as they are
			continue
		}
		w := weight(v, i)
		if low == 0 || w < low {
			low = w
		}
		high = max(high, w)
	}
	if low == 0 {
		return float64(least) / model.UtilizationMax
	}
	return min(float64(least)/float64(low), float64(most)/float64(high))
}

// slicesShare says whether the hardware can divide the device: everybody has slices, or nobody
// may be stopped, so that slices are all there is.
func (v *View) slicesShare() bool {
	return !v.CanSuspend || allSliced(v, 0, len(v.Queues))
}

// utilization is what a queue asked for; all of the device if it said nothing.
func utilization(v *View, i int) int {
	if u := v.Queues[i].Hint.Utilization; u > 0 {
		return u
	}
	return model.UtilizationMax
}

// turnLength is how long queue i keeps its turn.
func turnLength(v *View, i int) time.Duration {
	if s := v.Queues[i].Hint.Timeslice; s > 0 {
		return s
	}
	return v.Knobs.Quantum
}

// readyKin counts the ready queues of i's process on this device, 1 at least.
func (v *View) readyKin(i int) int {
	n := 0
	for j := i; ; {
		n += b2i(v.Ready.Has(j))
		if j = int(v.Kin[j]); j == i {
			return max(1, n)
		}
	}
}
