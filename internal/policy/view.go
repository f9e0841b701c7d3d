// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"sort"
	"time"

	"xsched/internal/model"
)

// View is a policy's input for one device. Queues on different devices do not
// compete, so each device has its own view. The engine owns it; policies only
// read it.
type View struct {
	// Queues are ordered by rank, highest first, then by ID.
	Queues []Queue
	// Groups are the queues that run and stop together.
	Groups []Group
	// Services are the processes with a latency target, and Overruled those
	// whose target does not count.
	Services, Overruled []*Service
	// Processes is how many distinct values Queue.Process has.
	Processes int
	// Pools are those that the hints name, and for a while those that they named.
	Pools []Pool

	// AnyCopying: a queue may be Copying.
	AnyCopying bool

	// CanSuspend is false while only timeslices may be used.
	CanSuspend bool
	// Unmanaged: a process that cannot be scheduled may use the device too.
	// Beside it a tiny slice makes no progress.
	Unmanaged bool
	Knobs     Knobs
	// LaunchBound is the strategy of the policy beside launch-bound requests; nil: the
	// default.
	LaunchBound *Strategy
}

// Pool is the programs that have one share together.
type Pool struct {
	Name   string
	Queues int           // in the view
	Got    time.Duration // GPU time of all its queues, also of those that left
	UsedAt model.Time    // when it last had queues, while it has none
}

// Queue is one queue of a view.
type Queue struct {
	// Queue.Slices is set only where the mode in force allows timeslices.
	model.Queue

	Admitted    bool // may run at all: not suspended by hand, nor by its gang
	Ready       bool // admitted, with work
	Progressing bool // ready, and able to progress under the verdicts in force

	Verdict model.Verdict // in force
	Slice   time.Duration // in force; NativeSlice where the verdict sets none

	// Active is the total time in which the queue was progressing, and
	// ActiveAtStart its value when the queue was last allowed to run.
	Active, ActiveAtStart time.Duration

	// Claim is the rank before the cap of its user.
	Claim model.Priority
	// Rivalled: the cap of its user does not exceed the rank of a queue of another
	// user. Contested: such a queue has work.
	Rivalled, Contested bool

	// Copying: it has copies only, which compete with nobody. It is not admitted,
	// but runs whatever the policy says.
	Copying bool
	// Native: protection gains its process nothing, so it shares the device as the
	// driver would.
	Native bool

	Process int // dense index of its process on this device
	Pool    int // index into View.Pools, plus 1; 0: none
	// Spare is what the other pools leave, in percent, if its pool is the best
	// effort; 0: it is not.
	Spare int
	Group int // index into View.Groups, -1: none
}

// Waiting reports that the queue has work and cannot progress.
func (q *Queue) Waiting() bool { return q.Ready && !q.Progressing }

func admitted(q *Queue) bool    { return q.Admitted }
func ready(q *Queue) bool       { return q.Ready }
func readySliced(q *Queue) bool { return q.Ready && q.Slices }

// Before is the order of queues in a view.
func Before(a, b *model.Queue) int {
	return cmp.Or(
		cmp.Compare(b.Rank, a.Rank),
		cmp.Compare(a.ID.Session, b.ID.Session),
		cmp.Compare(a.ID.Index, b.ID.Index),
	)
}

// all returns a plan with the same verdict for every queue.
func (v *View) all(verdict model.Verdict) model.Plan {
	plan := make(model.Plan, len(v.Queues))
	fill(plan, verdict)
	return plan
}

func fill(plan model.Plan, verdict model.Verdict) {
	for i := range plan {
		plan[i] = verdict
	}
}

// next returns the first queue of [from, end) that satisfies is, or -1.
func (v *View) next(from, end int, is func(*Queue) bool) int {
	for i := from; i < end; i++ {
		if is(&v.Queues[i]) {
			return i
		}
	}
	return -1
}

// several reports that more than n queues of [from, end) satisfy is.
func (v *View) several(from, end, n int, is func(*Queue) bool) bool {
	for i := from; i < end && n >= 0; i++ {
		if is(&v.Queues[i]) {
			n--
		}
	}
	return n < 0
}

// find returns the index of a queue, or -1.
func (v *View) find(id model.QueueID) int {
	return v.next(0, len(v.Queues), func(q *Queue) bool { return q.ID == id })
}

// classEnd returns the index after the last queue of i's rank.
func (v *View) classEnd(i int) int {
	rank := v.Queues[i].Rank
	return i + sort.Search(len(v.Queues)-i, func(k int) bool { return v.Queues[i+k].Rank != rank })
}

// classStart returns the first queue of the rank of queue i.
func (v *View) classStart(i int) int {
	rank := v.Queues[i].Rank
	return sort.Search(i, func(k int) bool { return v.Queues[k].Rank <= rank })
}

// running returns the queue in [from, n) that is allowed to run now, a ready one
// if there are several (after another policy or mode), or -1.
func (v *View) running(from int) int {
	idle := -1
	for i := from; i < len(v.Queues); i++ {
		q := &v.Queues[i]
		if q.Running && q.Ready {
			return i
		}
		if idle < 0 && q.Running && q.Admitted {
			idle = i
		}
	}
	return idle
}

// allSliced reports that every admitted queue of [from, end) has hardware slices.
func (v *View) allSliced(from, end int) bool {
	return v.next(from, end, func(q *Queue) bool { return q.Admitted && !q.Slices }) < 0
}

// slicesShare reports that the hardware divides the device: every queue has
// slices, or none may be suspended, so that slices are the only means.
func (v *View) slicesShare() bool { return !v.CanSuspend || v.allSliced(0, len(v.Queues)) }

// payer returns the index of who has the utilization of queue i: its pool, else its process, or the queue
// itself under a policy that divides the device between queues.
func (v *View) payer(i int, byProcess bool) int {
	switch q := &v.Queues[i]; {
	case q.Pool > 0:
		return len(v.Queues) + q.Pool - 1
	case byProcess:
		return q.Process
	}
	return i
}

// payers is an upper bound of payer.
func (v *View) payers() int { return len(v.Queues) + len(v.Pools) }

// each reports that each queue has a utilization of its own.
func (v *View) each(byProcess bool) bool {
	return len(v.Pools) == 0 && (!byProcess || v.Processes == len(v.Queues))
}

// readyByPayer counts the ready queues of each payer.
func (v *View) readyByPayer(byProcess bool) []int {
	n := make([]int, v.payers())
	for i := range v.Queues {
		if v.Queues[i].Ready {
			n[v.payer(i, byProcess)]++
		}
	}
	return n
}

// fit reduces a verdict to what queue i supports and the mode allows.
func (v *View) fit(i int, verdict model.Verdict) model.Verdict {
	q := &v.Queues[i]
	if !q.Admitted {
		return model.Verdict{}
	}
	if !v.CanSuspend {
		verdict.Limit = false
		if !verdict.Run {
			verdict = model.Verdict{Run: true}
		}
	}
	if !q.Slices {
		verdict.Slice = 0
	}
	return verdict
}

// Contention is how many ready queues run on a device, and with which slices. It
// defines which of them progress.
type Contention struct{ one, several, dominated bool }

// Add counts a queue under a verdict.
func (c *Contention) Add(q *Queue, p model.Verdict) {
	if q.Ready && p.Run {
		c.several, c.one = c.one, true
		c.dominated = c.dominated || p.Slice >= LongSlice
	}
}

// Progresses reports whether a queue progresses under a verdict. A ready queue
// that runs alone always does. Of several, only those with long slices do where
// there is one; otherwise all but those with tiny slices.
func (c Contention) Progresses(q *Queue, p model.Verdict) bool {
	switch {
	case !q.Ready || !p.Run:
		return false
	case !c.several:
		return true
	case c.dominated:
		return p.Slice >= LongSlice
	}
	return !tiny(p)
}

// perQueue is a policy's state of each queue, in the order of the view.
type perQueue[T any] struct {
	ids []model.QueueID
	of  []T
}

// align follows added, removed and moved queues. A new queue gets fresh.
func (m *perQueue[T]) align(v *View, fresh func(q *Queue) T) {
	same := len(m.ids) == len(v.Queues)
	for i := 0; same && i < len(m.ids); i++ {
		same = m.ids[i] == v.Queues[i].ID
	}
	if same {
		return
	}
	old := make(map[model.QueueID]T, len(m.ids))
	for i, id := range m.ids {
		old[id] = m.of[i]
	}
	m.ids, m.of = make([]model.QueueID, len(v.Queues)), make([]T, len(v.Queues))
	for i := range v.Queues {
		q := &v.Queues[i]
		value, known := old[q.ID]
		if !known {
			value = fresh(q)
		}
		m.ids[i], m.of[i] = q.ID, value
	}
}
