// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// wholeHold is how long a stop for a whole request outlasts it. TestNobodyStarvesBesideShortRequests.
const wholeHold = 200 * time.Microsecond

// strategies are those that HPF has in the simulator only, for comparisons (docs/strategies.md).
var strategies = policy.Strategies{
	"tiny":   {Summary: "a tiny slice, as beside other requests", Tiny: true},
	"medium": {Summary: "a slice of 0.5 ms", Slice: policy.UsefulSlice, Stops: never},
	"native": {Summary: "the driver's slice", Stops: never},
	"wait": {Summary: "suspended when its program begins to wait", Stops: func(_ model.Time, q *policy.Queue) (bool, model.Time) {
		return q.Ready && q.Feeding.Waits, model.Never
	}},
	"whole": {Summary: "suspended from its first launch on", Stops: func(now model.Time, q *policy.Queue) (bool, model.Time) {
		if q.Ready {
			return true, model.Never
		}
		return q.Follows(now, wholeHold)
	}},
	"tiny-in-time": {Summary: "a tiny slice shortly before its program waits", TinyStop: true},
}

func never(model.Time, *policy.Queue) (bool, model.Time) { return false, model.Never }
