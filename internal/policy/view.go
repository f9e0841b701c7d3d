// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"

	"xsched/internal/model"
)

// Grant is the starvation guard's memory for one device. The engine keeps it
// between two decisions and otherwise leaves it alone.
type Grant struct {
	Active bool
	Queue  model.QueueID
	Until  model.Time // of the grant that is running
	Rest   model.Time // no new grant before this
	Count  uint64     // grants so far
}

// View is what a policy may know of one device. Queues on different devices do
// not compete, so each device has a view of its own.
type View struct {
	// Queues are ordered by priority, highest first, then by ID. Slices is only
	// set where slices may be used now.
	Queues []model.Queue

	Eligible Set // not held by hand and of a priority that may run at all
	Ready    Set // eligible with work
	Running  Set // the verdict in force is to run
	Waiting  Set // ready and without a chance to progress since WaitSince
	Sliced   Set // Slices of the queue

	// CanSuspend is false while only timeslices may be used.
	CanSuspend bool
	Knobs      Knobs

	// OldestWait is no later than the WaitSince of any waiting queue.
	OldestWait model.Time
	Grant      Grant

	painting
	guard guardScratch
}

// Rebuild recomputes the sets from Queues, which must be in order. Waiting
// becomes what the verdicts tell: ready and not running.
func (v *View) Rebuild() {
	n := len(v.Queues)
	v.Eligible, v.Ready, v.Running = v.Eligible.Reset(n), v.Ready.Reset(n), v.Running.Reset(n)
	v.Waiting, v.Sliced = v.Waiting.Reset(n), v.Sliced.Reset(n)
	v.painting.reset(n)
	v.guard.reset(n)
	v.OldestWait = model.Never
	for i := range v.Queues {
		q := &v.Queues[i]
		v.Eligible.Put(i, !q.Held && q.Hint.Priority > model.PriorityNever)
		v.Ready.Put(i, q.Ready())
		v.Running.Put(i, q.Running)
		v.Sliced.Put(i, q.Slices)
		if q.Ready() && !q.Running {
			v.Wait(i)
		}
	}
}

// Wait puts queue i among the waiting ones.
func (v *View) Wait(i int) {
	v.Waiting.Put(i, true)
	v.OldestWait = min(v.OldestWait, v.Queues[i].WaitSince)
}

// Before is the order of queues in a view.
func Before(a, b *model.Queue) int {
	return cmp.Or(
		cmp.Compare(b.Hint.Priority, a.Hint.Priority),
		cmp.Compare(a.ID.Session, b.ID.Session),
		cmp.Compare(a.ID.Index, b.ID.Index),
	)
}

// ClassEnd returns the index after the last queue of i's priority.
func (v *View) ClassEnd(i int) int {
	prio, end := v.Queues[i].Hint.Priority, len(v.Queues)
	for i < end {
		mid := int(uint(i+end) >> 1)
		if v.Queues[mid].Hint.Priority == prio {
			i = mid + 1
		} else {
			end = mid
		}
	}
	return end
}

// longestWaiting returns the ready queue of [from, end) that has waited longest, other
// than not; -1 if there is none.
func (v *View) longestWaiting(from, end, not int) int {
	best := -1
	for i := v.Ready.NextIn(from, end); i >= 0; i = v.Ready.NextIn(i+1, end) {
		if i != not && (best < 0 || v.Queues[i].WaitSince < v.Queues[best].WaitSince) {
			best = i
		}
	}
	return best
}

// Chances says what progress on a device is. It puts into out those of the
// running ready queues that progress: one that is alone always does; of several only
// those with long slices where there is one, else all but those with tiny slices.
func Chances(ready, running, long, tiny, out Set) {
	n, dominated := 0, false
	for w := range out {
		out[w] = ready[w] & running[w]
		dominated = dominated || out[w]&long[w] != 0
		if out[w] != 0 {
			n += 1 + b2i(out[w]&(out[w]-1) != 0) // one or several is all that matters
		}
	}
	if n <= 1 {
		return
	}
	for w := range out {
		if dominated {
			out[w] &= long[w]
		} else {
			out[w] &^= tiny[w]
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
