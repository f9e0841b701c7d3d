// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// CHPF is HPF with CPU priorities: a process is as important on the GPU as its
// nice value makes it on the CPU. Priority hints are ignored.
type CHPF struct{ HPF }

// Rank implements Ranker.
func (CHPF) Rank(q *model.Queue, _ model.Priority) model.Priority {
	return model.Priority(-q.Hint.Nice)
}
