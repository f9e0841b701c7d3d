// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// A request that is submitted kernel by kernel leaves the device empty between
// kernels. The hardware then switches to the low with the tiny slice, and the
// next kernel pays for the switch back (docs/platforms has the
// figures). Beside such a high, lows keep the driver's slice and are suspended
// when it begins. The suspend takes effect while the program still submits, so
// it costs the high nothing, and nothing comes between its kernels afterwards.
//
// A suspend and a resume cost the low more than two switches. A request shorter
// than model.FedMin ends before a suspend takes effect. For one of model.FedMax
// or more the switches cost a few percent.

// fedHold is how long a low stays suspended after such a request: a program that
// reads a value back in the middle of a request continues at once.
const fedHold = 200 * time.Microsecond

// fedUntil is until when to avoid slices beside the queues of [from, end),
// because all of them submit kernel by kernel. now: not at all. Never: until
// something changes.
func (v *View) fedUntil(now model.Time, from, end int) model.Time {
	until := model.Never
	for i := from; i < end; i++ {
		q := &v.Queues[i]
		switch {
		case !q.Admitted:
		case !q.Feeding.Expected():
			return now
		case q.Busy:
			until = min(until, q.ChangedAt.Add(model.FedMax)) // a longer request does not qualify
		}
	}
	return max(until, now)
}
