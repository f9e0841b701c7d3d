// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// CHPF is HPF with the CPU's priorities: a process is as important on the GPU as
// its nice value makes it on the CPU. Priorities are not looked at.
type CHPF struct{ HPF }

var (
	_ Policy = CHPF{}
	_ Ranker = CHPF{}
)

// Name implements Policy.
func (CHPF) Name() string { return "CHPF" }

// Rank implements Ranker.
func (CHPF) Rank(q *model.Queue, _ model.Priority) model.Priority {
	return model.Priority(-q.Hint.Nice)
}
