// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"

	"xsched/internal/model"
)

// Grant is the starvation guard's memory for one device. The engine keeps it
// between two decisions and otherwise leaves it alone.
type Grant struct {
	Active bool
	Queue  model.QueueID
	index  int        // where it was
	Until  model.Time // of the grant that is running
	Rest   model.Time // no new grant before this
	Count  uint64     // grants so far
}

// View is what a policy may know of one device. Queues on different devices do
// not compete, so each device has a view of its own.
type View struct {
	// Queues are ordered by rank, highest first, then by ID. Slices is only
	// set where slices may be used now.
	Queues []model.Queue

	Eligible Set // not held by hand and of a priority that may run at all
	Ready    Set // eligible with work
	Running  Set // the verdict in force is to run
	Waiting  Set // ready and without a chance to progress since WaitSince
	Sliced   Set // Slices of the queue
	Chance   Set // ready, and able to progress

	// Clocks and Keys are beside Queues. While a view is in use the times of a queue
	// are in its clock; Flush writes them back.
	Clocks []Clock
	Keys   []int64
	// Kin leads from each queue to the next one of its process, round in a circle.
	Kin []int32
	// Width is the largest K that a queue asks for.
	Width int
	// Kindred are the queues whose process has several here.
	Kindred []int

	// CanSuspend is false while only timeslices may be used.
	CanSuspend bool
	// Unmanaged: somebody whom we can't schedule may use the device too. Beside
	// him a tiny slice gets nothing done.
	Unmanaged bool
	Knobs     Knobs

	// Memo is what the policy in force remembers about the device.
	Memo [4]int64
	// V is the rounds of the device so far: what each of those with a chance
	// had, in units of its slice.
	V float64

	// OldestWait is no later than the WaitSince of any waiting queue.
	OldestWait model.Time
	Grant      Grant

	// Services are the processes with a latency target.
	Services []*Service
	control  control

	// Groups are the queues that run and stop together.
	Groups  []Group
	GroupOf []int32 // index of each queue's group, -1: none

	painting
	guard  guardScratch
	sched  *Scheduler
	turn   model.QueueID // of turns: who has it
	turnAt int
	goesOn model.QueueID // whose turn, cut short before, goes on by this plan
	heavy  int           // cache of heaviest; 0: unknown
	sum    float64       // of the slices of those with a chance
	at     model.Time
	rest   Set // scratch of others
	some   Set // scratch of a policy
	spent  Set // of SPUP: those that had their share
	wanted Set // of fair: those that had work when it last decided
	strict Set // those with a utilisation below 100
	pids   map[int]int32
}

// Rebuild recomputes the sets from Queues, which must be in order. Waiting
// becomes what the verdicts tell: ready and not running.
func (v *View) Rebuild() {
	n := len(v.Queues)
	v.Eligible, v.Ready, v.Running = v.Eligible.Reset(n), v.Ready.Reset(n), v.Running.Reset(n)
	v.Waiting, v.Sliced = v.Waiting.Reset(n), v.Sliced.Reset(n)
	v.Chance, v.some, v.strict, v.rest = v.Chance.Reset(n), v.some.Reset(n), v.strict.Reset(n), v.rest.Reset(n)
	v.spent, v.wanted = v.spent.Reset(n), v.wanted.Reset(n)
	v.painting.reset(n)
	v.guard.reset(n)
	v.Clocks = slices.Grow(v.Clocks[:0], n)[:n]
	v.Keys = slices.Grow(v.Keys[:0], n)[:n]
	v.GroupOf = slices.Grow(v.GroupOf[:0], n)[:n]
	v.SetGroups(v.Groups[:0])
	v.OldestWait, v.sum, v.Width, v.heavy = model.Never, 0, 0, 0
	for i := range v.Queues {
		q := &v.Queues[i]
		v.Clocks[i] = Clock{
			Run: q.RunSince, Wait: q.WaitSince, Flip: q.WaitSince, Got: q.Got, V0: v.V,
			slice: float64(v.Knobs.NativeSlice),
		}
		v.Keys[i] = 0
		v.Width = max(v.Width, q.Hint.K)
		v.strict.Put(i, q.Hint.Utilization > 0 && q.Hint.Utilization < model.UtilizationMax)
		v.Eligible.Put(i, q.Eligible())
		v.Ready.Put(i, q.Ready())
		v.Running.Put(i, q.Running)
		v.wanted.Put(i, q.Memo[1] != 0)
		v.Sliced.Put(i, q.Slices)
		if q.Ready() && !q.Running {
			v.Wait(i)
		}
	}
	v.relate()
	v.relateServices()
	for i := range v.Queues {
		v.Rekey(i)
	}
}

// Flush writes the clocks back into the queues.
func (v *View) Flush() {
	for i := range v.Clocks {
		q, c := &v.Queues[i], &v.Clocks[i]
		q.RunSince, q.WaitSince, q.Got = c.Run, c.Wait, c.Got
	}
}

// relate finds the queues of each process.
func (v *View) relate() {
	n := len(v.Queues)
	v.Kin = slices.Grow(v.Kin[:0], n)[:n]
	if v.pids == nil {
		v.pids = make(map[int]int32, n)
	}
	clear(v.pids)
	for i := range v.Queues {
		v.Kin[i] = int32(i)
		if v.Queues[i].PID <= 0 {
			continue // nobody knows whose it is
		}
		if last, known := v.pids[v.Queues[i].PID]; known {
			v.Kin[i], v.Kin[last] = v.Kin[last], int32(i)
		}
		v.pids[v.Queues[i].PID] = int32(i)
	}
	v.Kindred = v.Kindred[:0]
	for i := range v.Kin {
		if int(v.Kin[i]) != i {
			v.Kindred = append(v.Kindred, i)
		}
	}
}

// GoesOn says that queue i, if the plan starts it, does not begin a turn but goes on with one.
func (v *View) GoesOn(i int) bool {
	return v.goesOn != model.QueueID{} && v.goesOn == v.Queues[i].ID
}

// Wait puts queue i among the waiting ones.
func (v *View) Wait(i int) {
	v.Waiting.Put(i, true)
	v.OldestWait = min(v.OldestWait, v.Clocks[i].Wait)
}

// Before is the order of queues in a view.
func Before(a, b *model.Queue) int {
	return cmp.Or(
		cmp.Compare(b.Rank, a.Rank),
		cmp.Compare(a.ID.Session, b.ID.Session),
		cmp.Compare(a.ID.Index, b.ID.Index),
	)
}

// ClassEnd returns the index after the last queue of i's rank.
func (v *View) ClassEnd(i int) int {
	rank, end := v.Queues[i].Rank, len(v.Queues)
	for i < end {
		mid := int(uint(i+end) >> 1)
		if v.Queues[mid].Rank == rank {
			i = mid + 1
		} else {
			end = mid
		}
	}
	return end
}

// longestWaiting returns the member of a set in [from, end) that has waited longest; -1 if there is none.
func (v *View) longestWaiting(set Set, from, end int) int {
	best := -1
	for i := set.NextIn(from, end); i >= 0; i = set.NextIn(i+1, end) {
		if best < 0 || v.Clocks[i].Wait < v.Clocks[best].Wait {
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
