// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// turns is how a policy serves the queues of a device one at a time, the least key
// first. At most one queue is enabled, idle or not: one that runs alone meets nobody on the
// chip, and a hand-over is one stop and one continue however many there are.
type turns struct {
	// preempt: a ready queue with a lesser key takes the turn at once. The lowest shift bits
	// of the keys do not count for that.
	preempt bool
	shift   uint
	// compete: at the end of a turn its holder may win again. Otherwise it goes behind the others.
	compete bool
	// length of a turn while others are ready; nil: till its holder goes idle.
	length func(v *View, i int) time.Duration
	// weight: turns of lighter queues are shorter, down to a timeslice, so that a small share
	// does not mean a long wait.
	weight func(v *View, i int) int
	// hold keeps a turn over a gap.
	hold bool
	// slice is the holder's.
	slice time.Duration
}

// decide returns the plan, who has the turn (-1: nobody could) and when to look again.
func (t turns) decide(now model.Time, v *View) (model.Plan, int, model.Time) {
	first := v.Eligible.Next(0)
	if first < 0 {
		return v.Base(Span{0, len(v.Queues), model.Verdict{}}), -1, model.Never
	}
	rest := model.Verdict{Limit: v.Eligible.Next(first+1) >= 0}
	plan := v.Base(Span{0, len(v.Queues), rest})
	cur := -1
	if v.CanSuspend {
		cur = v.holder()
	}
	i, wake := t.pick(now, v, first, cur)
	if i != cur {
		v.startTurn(now, i) // also if it was enabled beside others, under another policy
	}
	v.turn, v.turnAt = v.Queues[i].ID, i
	turn := model.Verdict{Run: true, Limit: rest.Limit, Slice: t.slice}
	if !v.CanSuspend {
		turn.Slice = v.longest(first) // the others run too: let this one's slice outlast its work
	}
	v.Set(i, turn)
	return plan, i, wake
}

// pick chooses who has the turn after cur, and when to look again. Where everybody runs
// nobody has had it, and cur is -1.
func (t turns) pick(now model.Time, v *View, first, cur int) (int, model.Time) {
	best := v.least(v.Ready)
	switch {
	case best < 0 && cur < 0:
		return first, model.Never
	case best < 0:
		return cur, model.Never
	case cur < 0:
		return best, t.until(v, best, now)
	case !v.Ready.Has(cur):
		if end := v.Queues[cur].ChangedAt.Add(v.Knobs.Hold); t.hold && now < end && !t.overtakes(v, best, cur) {
			return cur, end
		}
		return best, t.until(v, best, now)
	case t.overtakes(v, best, cur):
		return best, t.until(v, best, now)
	}
	end := t.until(v, cur, v.Clocks[cur].Run)
	if now < end {
		return cur, end
	}
	if !t.compete {
		if best = v.least(v.others(v.Ready, cur)); best < 0 {
			return cur, model.Never
		}
		if t.overtakes(v, cur, best) {
			return cur, t.until(v, cur, now) // the others are all behind it
		}
	}
	return best, t.until(v, best, now)
}

// holder is who has the turn. If it is gone, or another policy was in force, it is
// who runs, with work and the least key if there are several; -1: nobody.
func (v *View) holder() int {
	if v.turn != (model.QueueID{}) {
		if i := v.find(v.turn, v.turnAt); i >= 0 && v.Running.Has(i) && v.Eligible.Has(i) {
			return i
		}
	}
	for w := range v.some {
		v.some[w] = v.Ready[w] & v.Running[w]
	}
	if i := v.least(v.some); i >= 0 {
		return i
	}
	return activeNow(v, 0)
}

// longest is the slice of who shall come before the others that are eligible from a queue on. Where
// several of them can't be stopped it is no longer than that they still progress.
func (v *View) longest(first int) time.Duration {
	if !v.CanSuspend && v.Eligible.CountIn(first, len(v.Queues), 3) > 2 {
		return min(v.Knobs.HighSlice, v.Knobs.ShareMax)
	}
	return v.Knobs.HighSlice
}

// overtakes says that a queue may take the turn from its holder.
func (t turns) overtakes(v *View, i, holder int) bool {
	return t.preempt && v.Keys[i]>>t.shift < v.Keys[holder]>>t.shift
}

// until is when the turn of queue i ends that began at a time.
func (t turns) until(v *View, i int, began model.Time) model.Time {
	if t.length == nil || v.Ready.CountIn(0, len(v.Queues), 2) < 2 {
		return model.Never
	}
	length := t.length(v, i)
	if t.weight != nil && v.Queues[i].Hint.Timeslice == 0 {
		scaled := length * time.Duration(t.weight(v, i)) / time.Duration(v.heaviest(t.weight))
		length = min(length, max(scaled, v.Knobs.Timeslice))
	}
	return began.Add(length)
}

// heaviest is the largest weight on the device.
func (v *View) heaviest(weight func(v *View, i int) int) int {
	if v.heavy == 0 {
		v.heavy = 1
		for i := range v.Queues {
			v.heavy = max(v.heavy, weight(v, i))
		}
	}
	return v.heavy
}

// fair serves who had least for its weight, in turns. The key is what a queue had,
// divided by its weight; View.Memo[0] is the least key of those that wanted
// something till now, so that nobody saves up time by being idle. Who begins to want something
// now does not count: it is behind by all that the others had meanwhile.
func fair(now model.Time, v *View, weight func(v *View, i int) int) (model.Plan, model.Time) {
	v.SettleAll() // one, or a few; all of them where they shared the device till now
	if i := v.least(v.wanted); i >= 0 {
		v.Memo[0] = max(v.Memo[0], v.Keys[i])
	}
	v.want()
	plan, i, wake := turns{compete: true, length: turnLength, weight: weight, hold: true}.decide(now, v)
	if i >= 0 && v.Ready.Has(i) {
		v.lift(i)
	}
	return plan, wake
}

// want notes who has work now, also while slices share the device. Queue.Memo[1] keeps it over a rebuild.
func (v *View) want() {
	for w := range v.Ready {
		for set := v.wanted[w] ^ v.Ready[w]; set != 0; set &= set - 1 {
			i := first(w, set)
			v.Queues[i].Memo[1] = int64(b2i(v.Ready.Has(i)))
		}
		v.wanted[w] = v.Ready[w]
	}
}

// lift raises a queue that was away to where the others are.
func (v *View) lift(i int) {
	if q := &v.Queues[i]; q.Memo[0] < v.Memo[0] {
		q.Memo[0] = v.Memo[0]
		v.Rekey(i)
	}
}

// fairKey is the key of fair.
func fairKey(v *View, i int) int64 { return v.Queues[i].Memo[0] }

// fairCharge moves a queue on by what it had.
func fairCharge(v *View, i int, used time.Duration, weight int) {
	q := &v.Queues[i]
	q.Memo[0] = max(q.Memo[0], v.Memo[0]) + int64(used)*model.UtilizationMax/int64(weight)
}
