// SPDX-License-Identifier: Apache-2.0

package engine

import "xsched/internal/model"

// QueueState is what is known of a queue, for people to look at.
type QueueState struct {
	Queue   model.Queue
	Desired model.Desired // as last decided
	// Waiting: it has work and no chance to progress since Queue.WaitSince.
	Waiting bool

	Preemptions [Levels]uint64 // times it was stopped with work, by level
	Yields      uint64         // times the hardware left it for a longer slice
	Caused      uint64         // preemptions and yields of others in its favour
	PreemptedBy int            // PID in whose favour it last had to leave; 0: nobody's
}

// Snapshot returns the state of all queues by device, priority and ID, as of the last Decide.
func (e *Engine) Snapshot(model.Time) []QueueState {
	all := make([]QueueState, 0, len(e.queues))
	for _, d := range e.devices {
		for i, r := range d.records {
			s := r.state
			s.Queue, s.Desired = d.view.Queues[i], r.sent
			s.Queue.Slices = r.slices
			s.Waiting = s.Queue.Ready() && !r.chance
			all = append(all, s)
		}
	}
	return all
}

// Stats returns the counts since the engine was made.
func (e *Engine) Stats() Stats {
	s := e.stats
	for _, d := range e.devices {
		s.Grants += d.view.Grant.Count
	}
	return s
}
