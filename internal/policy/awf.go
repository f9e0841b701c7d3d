// SPDX-License-Identifier: Apache-2.0

package policy

import "xsched/internal/model"

// AWF is HPF for desktops: the process with the active window comes first, the
// others follow by priority.
type AWF struct{ HPF }

// Rank implements Ranker.
func (AWF) Rank(q *model.Queue, _ model.Priority) model.Priority {
	if q.Hint.WindowActive {
		return model.PriorityMax
	}
	return min(q.Hint.Priority, model.PriorityMax-1)
}
