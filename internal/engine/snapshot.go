// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"xsched/internal/model"
	"xsched/internal/policy"
)

// QueueState is the state of a queue, for display.
type QueueState struct {
	Queue   model.Queue
	Desired model.Desired // as last decided
	// Waiting: it has work and could not progress since Queue.WaitSince.
	Waiting bool
	Parked  bool // idle, and left out of decisions until it has work

	Preemptions [Levels]uint64 // times it was suspended with work, by level
	Yields      uint64         // times the hardware left it for a longer slice
	Caused      uint64         // preemptions and yields of others in its favour
	PreemptedBy int            // PID in whose favour it was last preempted; 0: none

	Segments model.SegmentState // how its program submits requests

	// SLO is the status of its process's latency target on this device; the zero
	// value means that there is none.
	SLO policy.SLOStatus
}

// Snapshot returns the state of all queues by device, rank and ID, parked ones
// behind the others, as of the last Decide.
func (e *Engine) Snapshot(model.Time) []QueueState {
	all := make([]QueueState, 0, len(e.queues))
	var slos []policy.SLOStatus
	for _, d := range e.devices {
		if d.stale {
			d.sort()
		}
		slos = d.policy.SLOs(&d.view, d.state, d.id, slos[:0])
		for i, r := range d.records {
			s := r.state
			q := &d.view.Queues[i]
			s.Queue, s.Desired, s.Segments = q.Queue, r.sent, r.segments.State()
			s.Queue.Slices, s.Queue.Hint = r.slices, r.hint
			s.Waiting = hasWork(q) && !q.Progressing
			for _, slo := range slos {
				if slo.PID == s.Queue.PID {
					s.SLO = slo
				}
			}
			all = append(all, s)
		}
		for _, r := range d.parked {
			s := r.state
			s.Queue, s.Desired, s.Parked, s.Segments = r.parked.Queue, r.sent, true, r.segments.State()
			s.Queue.Slices = r.slices
			all = append(all, s)
		}
	}
	return all
}

// Kept reports that a queue would not progress under the plan in force if it had
// work: it is suspended, or slices of others with work keep it from that.
func (e *Engine) Kept(id model.QueueID) bool {
	r := e.queues[id]
	if r == nil || r.dev.stale || r.parked != nil { // a new decision is pending
		return false
	}
	mine := r.dev.queue(r).Verdict
	if !mine.Run {
		return true
	}
	for i := range r.dev.view.Queues {
		q := &r.dev.view.Queues[i]
		if i == r.index || !q.Ready || !q.Running {
			continue
		}
		long := q.Verdict.Slice >= policy.LongSlice && mine.Slice < policy.LongSlice
		if long || mine.Slice != 0 && mine.Slice < policy.UsefulSlice {
			return true
		}
	}
	return false
}

// WaitsSince reports that a queue has work, cannot progress now and could not
// since a time.
func (e *Engine) WaitsSince(id model.QueueID, since model.Time) bool {
	r := e.queues[id]
	if r == nil || r.dev.stale || r.parked != nil {
		return false
	}
	q := r.dev.queue(r)
	return q.Waiting() && q.WaitSince <= since
}

// StoppedFor returns the process in whose favour a queue was last preempted;
// 0: none.
func (e *Engine) StoppedFor(id model.QueueID) int {
	if r := e.queues[id]; r != nil {
		return r.state.PreemptedBy
	}
	return 0
}

// Stats returns the counts since the engine was made.
func (e *Engine) Stats() Stats { return e.stats }

// SLOs returns the status of the latency targets, by device and process.
func (e *Engine) SLOs() []policy.SLOStatus {
	var all []policy.SLOStatus
	for _, d := range e.devices {
		all = d.policy.SLOs(&d.view, d.state, d.id, all)
	}
	return all
}
