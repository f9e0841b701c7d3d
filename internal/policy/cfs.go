// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"time"

	"xsched/internal/model"
)

// CFS is completely fair scheduling: each queue gets GPU time in proportion to
// its weight, in rounds as short as switching allows. The weight is the
// utilization where a hint sets one. Otherwise it follows the CPU nice value,
// where one step is a quarter more or less.
//
// Where the device has slices, one round of cfsRound is divided between all
// queues, but no slice is shorter than cfsLeast. That is quick with a few
// tenants and loses 7 % to switching with many. UP has longer slices and loses less.
type CFS struct{}

const (
	cfsRound = 24 * time.Millisecond
	cfsLeast = 3 * time.Millisecond
)

// Decide implements Policy.
func (CFS) Decide(now model.Time, v *View, s *fairState) (model.Plan, model.Time) {
	s.update(v, cfsWeight, false)
	if v.slicesShare() {
		s.want(v)
		return v.divide(now, v.shareOut(cfsWeight, cfsSlice(v), v.Knobs.ShareMax), false, &s.rota)
	}
	return s.takeTurns(now, v, cfsWeight)
}

// cfsSlice is the slice of the lightest queue.
func cfsSlice(v *View) time.Duration {
	sum := 0
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Eligible() {
			sum += cfsWeight(q)
		}
	}
	if sum == 0 {
		return cfsLeast
	}
	return max(cfsLeast, cfsRound*time.Duration(v.lightest(cfsWeight))/time.Duration(sum))
}

// niceWeights are 100 at nice 0 and a quarter more for each step towards -20.
var niceWeights = func() (w [model.NiceMax - model.NiceMin + 1]int) {
	for i := range w {
		w[i] = max(1, int(math.Round(100*math.Pow(1.25, -float64(i+model.NiceMin)))))
	}
	return w
}()

func cfsWeight(q *Queue) int {
	h := &q.Hint
	nice := niceWeights[min(max(h.Nice, model.NiceMin), model.NiceMax)-model.NiceMin]
	switch {
	case h.Utilization == 0 && h.Nice != 0 && q.Spare == 0:
		return nice
	case (q.Contested || q.Spare > 0) && h.Nice > 0:
		return min(nice, utilization(q)) // a share does not lift a nice value
	}
	return utilization(q)
}
