// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"math/bits"
	"time"

	"xsched/internal/model"
)

// Clock is the times of one queue. They lie side by side, one cache line
// each, because a high that arrives beside a thousand sharing lows moves a thousand of them.
type Clock struct {
	Run, Wait model.Time    // Queue.RunSince and WaitSince, up to date
	Flip      model.Time    // when its chance last changed
	Credit    time.Duration // progress too small to end its wait so far
	Got       time.Duration // GPU time
	V0        float64       // View.V up to which Got counts
	slice     float64       // in force, for its share of the device
	_         [1]uint64
}

// Bind makes a view work for a scheduler, with nothing remembered.
func (v *View) Bind(s *Scheduler) {
	v.sched = s
	v.Memo = [4]int64{}
	v.control = control{}
	v.turn = model.QueueID{}
	for i := range v.Queues {
		v.Queues[i].Memo = [2]int64{}
	}
}

// Advance lets time go by: those with a chance share it in proportion to their
// slices. V counts the rounds, so that nobody has to be visited.
func (v *View) Advance(now model.Time) {
	if d := now - v.at; d > 0 && v.sum > 0 {
		v.V += float64(d) / v.sum
	}
	v.at = max(v.at, now)
}

// Begin and End note that a queue has a chance to progress, and that it has none any more.
func (v *View) Begin(i int) {
	c := &v.Clocks[i]
	c.V0 = v.V
	v.sum += c.slice
	v.Chance.Put(i, true)
	v.Rekey(i)
}

// End is the counterpart of Begin.
func (v *View) End(i int) {
	v.Settle(i)
	v.sum -= v.Clocks[i].slice
	v.Chance.Put(i, false)
	v.Rekey(i)
}

// SetSlice notes the slice in force for queue i.
func (v *View) SetSlice(i int, slice time.Duration) {
	if slice == 0 {
		slice = v.Knobs.NativeSlice
	}
	c := &v.Clocks[i]
	if f := float64(slice); f != c.slice {
		if v.Chance.Has(i) {
			v.Settle(i)
			v.sum += f - c.slice
		}
		c.slice = f
		v.Rekey(i)
	}
}

// Round is the slices of all that have a chance, and SliceOf that of queue i.
func (v *View) Round() time.Duration        { return time.Duration(v.sum) }
func (v *View) SliceOf(i int) time.Duration { return time.Duration(v.Clocks[i].slice) }

// Settle charges a queue for what it had since the last time.
func (v *View) Settle(i int) {
	c := &v.Clocks[i]
	used := time.Duration(c.slice * (v.V - c.V0))
	if used <= 0 {
		return // too little to count yet
	}
	c.V0 = v.V
	c.Got += used
	if v.sched != nil && v.sched.charger != nil {
		v.sched.charger.Charge(v, i, used)
		v.Rekey(i)
	}
}

// SettleAll charges everybody.
func (v *View) SettleAll() {
	for i := v.Chance.Next(0); i >= 0; i = v.Chance.Next(i + 1) {
		v.Settle(i)
	}
}

// settleFew charges those that run where they are few, as under every policy that gives turns.
func (v *View) settleFew() {
	if v.sched != nil && v.sched.charger != nil && v.Chance.CountIn(0, len(v.Queues), 9) < 9 {
		v.SettleAll()
	}
}

// Rekey computes the key of queue i anew.
func (v *View) Rekey(i int) {
	if v.sched != nil && v.sched.keyer != nil {
		v.Keys[i] = v.sched.keyer.Key(v, i)
	}
}

// least returns the member of a set with the least key, the first of equals;
// -1 if there is none.
func (v *View) least(set Set) int {
	best, key, keys := -1, int64(math.MaxInt64), v.Keys
	for w, word := range set {
		for ; word != 0; word &= word - 1 {
			if i := w<<6 + bits.TrailingZeros64(word); keys[i] < key || best < 0 {
				best, key = i, keys[i]
			}
		}
	}
	return best
}

// leastOf fills out with the members of a set that have the least keys, least
// first, and returns how many there are.
func (v *View) leastOf(set Set, out []int) int {
	n := 0
	for w, word := range set {
		for ; word != 0; word &= word - 1 {
			i := first(w, word)
			if n == len(out) && v.Keys[i] >= v.Keys[out[n-1]] {
				continue
			}
			n = min(n+1, len(out))
			at := n - 1
			for ; at > 0 && v.Keys[out[at-1]] > v.Keys[i]; at-- {
				out[at] = out[at-1]
			}
			out[at] = i
		}
	}
	return n
}
