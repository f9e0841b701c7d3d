// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// Ranker is a policy with its own idea of priority. Queues are ordered by rank, and
// whatever HPF does it does by rank. Without it a queue's rank is its priority.
type Ranker interface {
	// Rank returns the rank of a queue; process is the highest priority of all queues of
	// its process, on any device.
	Rank(q *model.Queue, process model.Priority) model.Priority
}

// Keyer is a policy that serves the ready queue with the least key. Keys lie side by side
// in the view, so that looking through a thousand of them takes a microsecond;
// they are computed when something happens to a queue, and must not depend on the time.
type Keyer interface{ Key(v *View, i int) int64 }

// Charger is a policy that wants to know what GPU time a queue had.
type Charger interface {
	Charge(v *View, i int, used time.Duration)
}

// Scheduler is a policy of the registry with the guard and the groups around it.
type Scheduler struct {
	Policy
	ranker  Ranker
	keyer   Keyer
	charger Charger
}

func newScheduler(p Policy) *Scheduler {
	s := &Scheduler{Policy: grouped{guarded{p}}}
	s.ranker, _ = p.(Ranker)
	s.keyer, _ = p.(Keyer)
	s.charger, _ = p.(Charger)
	return s
}

// Rank is the rank of a queue under this policy.
func (s *Scheduler) Rank(q *model.Queue, process model.Priority) model.Priority {
	if s.ranker == nil {
		return q.Hint.Priority
	}
	return s.ranker.Rank(q, process)
}

// RanksProcesses says that the rank of a queue depends on others of its process.
func (s *Scheduler) RanksProcesses() bool {
	_, yes := s.ranker.(interface{ byProcess() })
	return yes
}
