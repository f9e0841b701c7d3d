// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// A request that is fed to the device kernel by kernel leaves it empty between them. The hardware
// then goes to the low with the tiny slice, and the next kernel pays for the way back, again and again
// (docs/platforms/nvidia.md has the figures). Beside such a high the lows keep the driver's slice and
// are stopped when it begins. The stop takes effect while the program still submits, so that it costs the high
// nothing, and from then on nothing comes between its kernels.
//
// A stop and a continue cost the low more than two switches. A request shorter than
// model.FedMin is over before a stop takes effect; for one of model.FedMax or more the switches are a few percent.

// FedHold is for how long a low stays stopped after such a request: one that reads a value back in its
// middle goes on at once.
const FedHold = 200 * time.Microsecond

// fedUntil is till when slices are not to be used for what the queues of [from, end) do, because all of them
// are fed kernel by kernel; now: not at all, Never: as long as nothing changes.
func (v *View) fedUntil(now model.Time, from, end int) model.Time {
	until := model.Never
	for i := v.Eligible.NextIn(from, end); i >= 0; i = v.Eligible.NextIn(i+1, end) {
		q := &v.Queues[i]
		if !q.Feeding.Expected() {
			return now
		}
		if q.Busy {
			until = min(until, q.ChangedAt.Add(model.FedMax)) // it is none if it takes longer
		}
	}
	return max(until, now)
}
