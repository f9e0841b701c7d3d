// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"math"

	"xsched/internal/model"
	"xsched/internal/wire"
)

// seenLate is when a change was that the engine knows of as a younger one, as it may if the queue is quiet or
// not listened to: such a busy time looks shorter than it is. Nobody begins to wait after that.
const seenLate = math.MaxUint64

// seenAt is when a queue last changed by its client's word, or seenLate.
func seenAt(now model.Time, v *wire.QueueView) uint64 {
	if v.ChangedNS < uint64(now.Add(-model.FedMin/2)) {
		return seenLate
	}
	return v.ChangedNS
}
