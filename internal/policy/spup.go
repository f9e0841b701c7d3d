// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"time"

	"xsched/internal/model"
)

// SPUP is PUP made strict: a process that had its utilisation within the
// window is held till the next one, also when nobody else wants the device.
// Who said nothing, or 100, is never held. Processes that compete share as under PUP.
//
// Queue.Memo is the window and what the queue had in it; View.Memo[1] is the
// window that is charged now.
type SPUP struct{}

var (
	_ Policy  = SPUP{}
	_ Keyer   = SPUP{}
	_ Charger = SPUP{}
)

// Name implements Policy.
func (SPUP) Name() string { return "SPUP" }

// Decide implements Policy.
func (s SPUP) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	window := int64(now) / int64(v.Knobs.Window)
	soonest := v.least(v.Chance)
	switch {
	case window != v.Memo[1]:
		v.SettleAll() // into the old window
		v.Memo[1] = window
		for i := range v.Queues {
			v.Rekey(i)
		}
		soonest = v.least(v.Chance)
	case soonest >= 0 && v.Keys[soonest] <= int64(v.V*roundUnit):
		v.SettleAll()
		soonest = v.least(v.Chance)
	}
	var plan model.Plan
	wake, turn := model.Never, -1
	if v.slicesShare() {
		plan = pupShares(v, spupSlice(v))
	} else {
		plan, turn, wake = s.turn(now, v)
	}
	if !v.CanSuspend {
		return plan, model.Never
	}
	held := false
	for w := range v.Eligible {
		for set := v.Eligible[w] & v.spent[w]; set != 0; set &= set - 1 {
			i := first(w, set)
			v.Set(i, model.Verdict{Limit: true, Slice: plan[i].Slice})
			held = true
		}
	}
	next := model.Time((window + 1) * int64(v.Knobs.Window))
	if held {
		wake = min(wake, next)
	}
	if at := s.dueAt(now, v, soonest, turn); at < wake {
		wake = min(at, next)
	}
	return plan, wake
}

// turn serves one at a time: who had the least part of its share in this window.
func (s SPUP) turn(now model.Time, v *View) (model.Plan, int, model.Time) {
	first := v.Eligible.Next(0)
	if first < 0 {
		return v.Base(Span{0, len(v.Queues), model.Verdict{}}), -1, model.Never
	}
	v.settleFew()
	rest := model.Verdict{Limit: v.Eligible.Next(first+1) >= 0}
	plan := v.Base(Span{0, len(v.Queues), rest})
	for w := range v.some {
		v.some[w] = v.Ready[w] &^ v.spent[w]
	}
	best, wake := s.pick(now, v, v.some)
	if best >= 0 {
		v.Set(best, model.Verdict{Run: true, Limit: rest.Limit})
	}
	return plan, best, wake
}

// pick chooses from those that may have a turn; -1: all that could are held.
func (s SPUP) pick(now model.Time, v *View, from Set) (int, model.Time) {
	cur := activeNow(v, 0)
	if cur >= 0 && v.spent.Has(cur) {
		cur = -1
	}
	wanted := 0.0 // of the device, in percent, by all processes with work
	for i := v.Ready.Next(0); i >= 0; i = v.Ready.Next(i + 1) {
		wanted += float64(utilization(v, i)) / float64(v.readyKin(i))
	}
	if cur >= 0 {
		if from.Next(0) < 0 {
			return cur, model.Never
		}
		end := v.Queues[cur].ChangedAt.Add(v.Knobs.Hold)
		if v.Ready.Has(cur) {
			end = s.until(now, v, cur, wanted)
		}
		if now < end {
			return cur, end
		}
	}
	best, had := -1, 0.0
	for i := from.Next(0); i >= 0; i = from.Next(i + 1) {
		part := float64(s.used(v, i)) / float64(utilization(v, i))
		if best < 0 || part < had {
			best, had = i, part
		}
	}
	if best < 0 {
		return cur, model.Never
	}
	v.startTurn(now, best) // a new one, also if it is the same queue's
	if from.CountIn(0, len(v.Queues), 2) > 1 {
		return best, s.until(now, v, best, wanted)
	}
	return best, model.Never
}

// until is when the turn of queue i ends: after a quantum, or sooner if it has had its part of
// this window by then. A window has few turns; without that who comes first would have one too many in each.
func (s SPUP) until(now model.Time, v *View, i int, wanted float64) model.Time {
	part := time.Duration(float64(v.Knobs.Window) * float64(utilization(v, i)) / max(wanted, model.UtilizationMax))
	began, least := v.Clocks[i].Run, max(UsefulSlice, min(part, v.Knobs.Timeslice))
	return max(began.Add(least), min(began.Add(turnLength(v, i)), now.Add(part-s.used(v, i))))
}

// spupSlice is the slice of the smallest share: a quarter of what it may have in a window, so that
// what the slices give is what is charged, but not more than a timeslice.
func spupSlice(v *View) time.Duration {
	if len(v.each) == len(v.plan) {
		return 0 // the slices are there already
	}
	least := model.UtilizationMax
	for i := range v.Queues {
		if v.Queues[i].Eligible() {
			least = min(least, utilization(v, i))
		}
	}
	return min(v.Knobs.Timeslice, max(UsefulSlice, v.Knobs.Window*time.Duration(least)/model.UtilizationMax/4))
}

// used is what the process of queue i had in this window.
func (SPUP) used(v *View, i int) time.Duration {
	used := int64(0)
	for j := i; ; {
		if m := &v.Queues[j].Memo; m[0] == v.Memo[1] {
			used += m[1]
		}
		if j = int(v.Kin[j]); j == i {
			return time.Duration(used)
		}
	}
}

// left is what the process of queue i may still have in this window.
func (s SPUP) left(v *View, i int) time.Duration {
	u := utilization(v, i)
	if u >= model.UtilizationMax {
		return math.MaxInt64
	}
	left := v.Knobs.Window*time.Duration(u)/model.UtilizationMax - s.used(v, i)
	if left < time.Microsecond {
		return 0
	}
	return left
}

// Charge implements Charger.
func (SPUP) Charge(v *View, i int, used time.Duration) {
	m := &v.Queues[i].Memo
	if m[0] != v.Memo[1] {
		*m = [2]int64{v.Memo[1], 0}
	}
	m[1] += int64(used)
	for j := int(v.Kin[i]); j != i; j = int(v.Kin[j]) {
		v.Rekey(j) // what it had its siblings have no more
	}
}

// roundUnit makes a key of View.V.
const roundUnit = 1e9

// Key implements Keyer: the round in which the queue will have had its share. For a
// process with several queues it is too late by what the others have, at most
// the number of them; they are looked at again then.
func (s SPUP) Key(v *View, i int) int64 {
	left := s.left(v, i)
	v.spent.Put(i, left == 0)
	if left == math.MaxInt64 || left == 0 || !v.Chance.Has(i) {
		return math.MaxInt64
	}
	c := &v.Clocks[i]
	return int64((c.V0 + float64(left)/c.slice/float64(v.readyKin(i))) * roundUnit)
}

// dueAt is when the first of those that run now will have had its share. It is asked before
// the plan is in force; who begins because of it is looked at after what is left to it.
func (s SPUP) dueAt(now model.Time, v *View, soonest, turn int) model.Time {
	at := model.Never
	if soonest >= 0 && v.Keys[soonest] != math.MaxInt64 {
		rounds := max(0, float64(v.Keys[soonest])/roundUnit-v.V)
		at = now + model.Time(rounds*v.sum) + 1
	}
	if turn >= 0 {
		if v.strict.Has(turn) && v.Ready.Has(turn) && !v.Chance.Has(turn) {
			at = min(at, now.Add(s.left(v, turn)))
		}
		return at
	}
	for w := range v.Ready {
		for set := v.Ready[w] & v.strict[w] &^ (v.Chance[w] | v.spent[w]); set != 0; set &= set - 1 {
			if i := first(w, set); v.plan[i].Run {
				at = min(at, now.Add(s.left(v, i)))
			}
		}
	}
	return at
}
