// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"xsched/internal/model"
	"xsched/internal/policy"
)

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

	// SLO is how the latency target of its process stands on this device; its zero
	// value means that there is none.
	SLO policy.SLOStatus
}

// Snapshot returns the state of all queues by device, priority and ID, as of the last Decide.
func (e *Engine) Snapshot(model.Time) []QueueState {
	all := make([]QueueState, 0, len(e.queues))
	var slos []policy.SLOStatus
	for _, d := range e.devices {
		d.flush()
		d.reorder()
		slos = d.view.SLOs(d.id, slos[:0])
		for i, r := range d.records {
			s := r.state
			s.Queue, s.Desired = d.view.Queues[i], r.sent
			s.Queue.Slices = r.slices
			s.Waiting = s.Queue.Ready() && !r.chance
			for _, slo := range slos {
				if slo.PID == s.Queue.PID {
					s.SLO = slo
				}
			}
			all = append(all, s)
		}
	}
	return all
}

// Kept says that a queue would get nothing done under the plan in force if it had work: it is stopped, or
// slices of others that have some keep it from that.
func (e *Engine) Kept(id model.QueueID) bool {
	r := e.queues[id]
	if r == nil || r.dev.moved { // then it is about to be decided anew
		return false
	}
	d := r.dev
	for i := d.view.Ready.Next(0); i >= 0; i = d.view.Ready.Next(i + 1) {
		if i != r.index && d.view.Running.Has(i) && (d.tiny.Has(r.index) || d.long.Has(i) && !d.long.Has(r.index)) {
			return true
		}
	}
	return !r.verdict.Run
}

// WaitsSince says that a queue has work, can't progress now and did not since a time.
func (e *Engine) WaitsSince(id model.QueueID, since model.Time) bool {
	r := e.queues[id]
	if r == nil || r.dev.moved {
		return false
	}
	v := &r.dev.view
	return v.Ready.Has(r.index) && !v.Chance.Has(r.index) && v.Clocks[r.index].Wait <= since
}

// StoppedFor is the process in whose favour a queue last had to leave; 0: nobody's.
func (e *Engine) StoppedFor(id model.QueueID) int {
	if r := e.queues[id]; r != nil {
		return r.state.PreemptedBy
	}
	return 0
}

// Stats returns the counts since the engine was made.
func (e *Engine) Stats() Stats {
	s := e.stats
	for _, d := range e.devices {
		s.Grants += d.view.Grant.Count
	}
	return s
}

// SLOs returns how the latency targets stand, by device and process.
func (e *Engine) SLOs() []policy.SLOStatus {
	var all []policy.SLOStatus
	for _, d := range e.devices {
		all = d.view.SLOs(d.id, all)
	}
	return all
}
