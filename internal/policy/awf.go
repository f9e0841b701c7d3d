// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// AWF is HPF for desktops: the process whose window the user looks at comes
// first, the others follow by priority.
type AWF struct{ HPF }

var (
	_ Policy = AWF{}
	_ Ranker = AWF{}
)

// Name implements Policy.
func (AWF) Name() string { return "AWF" }

// Rank implements Ranker.
func (AWF) Rank(q *model.Queue, _ model.Priority) model.Priority {
	if q.Hint.WindowActive {
		return model.PriorityMax
	}
	return min(q.Hint.Priority, model.PriorityMax-1)
}
