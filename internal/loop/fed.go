// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"math"

	"xsched/internal/model"
	"xsched/internal/wire"
)

// seenLate marks a timestamp as unreliable: the engine observed this transition late, because the
// queue is quiet or its user throttled. The busy period then looks shorter than it is. No request
// begins after this value.
const seenLate = math.MaxUint64

// seenAt returns the time of the last transition as the client dated it, or seenLate.
func seenAt(now model.Time, v *wire.QueueView) uint64 {
	if v.ChangedNS < uint64(now.Add(-model.FedMin/2)) {
		return seenLate
	}
	return v.ChangedNS
}
