// SPDX-License-Identifier: Apache-2.0

package terms

import "xsched/internal/model"

// Queue is what differs for one queue from the hint of its process.
type Queue struct {
	Device model.DeviceID
	Stream bool  // a single stream, not a whole context
	Offset int32 // priority of the stream, added to the process's

	said    model.HintChange // hint of the program about this queue alone
	set     model.HintChange // newer hint of a control client
	granted model.Priority   // with set; as Process.granted
	pinned  model.HintChange // as Process.pinned
}

// Separate reports whether a control client has set a hint for this queue.
func (q *Queue) Separate() bool { return !q.set.Empty() }

// SayQueue applies a hint of the program about one queue. It returns why a priority was not granted; empty: it was.
func (p *Process) SayQueue(q *Queue, change *model.HintChange) (note string) {
	q.set = q.set.Without(&q.said, change) // the newer hint wins
	q.said = *change
	var said model.Hint
	q.said.Apply(&said)
	return p.keepNote(p.restrict(&said))
}

// Effective returns the hint in force for a queue: the process's hint, then the priority of the
// stream, then hints about this queue.
func (p *Process) Effective(q *Queue) model.Hint {
	h := p.Hint
	if q.Stream && h.Priority != model.PriorityNever {
		h.Priority = min(max(h.Priority+model.Priority(q.Offset), model.PriorityMin), model.PriorityMax)
	}
	q.said.Apply(&h)
	p.restrict(&h)
	q.set.Apply(&h)
	p.fixed.Apply(&h)
	q.pinned.Apply(&h)
	ownShare := q.pinned.Has("utilization")
	if (h.Utilization == 0 || p.Terms.Grant.Share != 0) && !ownShare {
		p.limitShare(&h)
	}
	granted := max(p.granted, q.granted)
	p.limit(granted, &h)
	h.Cap = p.cap(granted)
	if !ownShare {
		h.Pool = p.pool()
	}
	h.Level = p.Hint.Level // hardware queues belong to the process, so all its queues share one level
	h.PerQueue = h.PerQueue || p.Streams > 0
	if p.ceiling == nil && q.granted <= model.PriorityDefault { // root's own word about the process counts
		p.Terms.Grant.lower(q.Device, &h)
	}
	return h
}

// EffectiveForEngine returns Effective as the engine needs it.
func (p *Process) EffectiveForEngine(q *Queue) model.Hint { return p.withOwner(p.Effective(q)) }

// Count adds a queue of the process, or removes it if by is -1. It returns true if that changes how the
// other queues are scheduled.
func (p *Process) Count(q *Queue, by int) bool {
	if !q.Stream {
		return false
	}
	before := p.Streams > 0
	p.Streams += by
	return before != (p.Streams > 0)
}
