// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/bits"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

const (
	// switchCost is what a chance to progress costs before it yields any: a switch in and one out.
	switchCost = 400 * time.Microsecond
	// realProgress is how much must be got in all before a wait counts as ended. Many
	// chances that are each too short for a switch are no progress.
	realProgress = time.Millisecond
)

// account brings the clocks and the waiting set up to now: it is the one place where
// "progress on the GPU" is defined. It runs before a decision, for what the applications
// did, and after one, for what the plan did.
func (e *Engine) account(now model.Time, d *device) {
	v := &d.view
	v.Advance(now)
	policy.Chances(v.Ready, v.Running, d.long, d.tiny, d.next)
	for w := range d.next {
		ended, began := v.Chance[w]&^d.next[w], d.next[w]&^v.Chance[w]
		for ; ended != 0; ended &= ended - 1 {
			e.chanceEnded(now, d, w<<6+bits.TrailingZeros64(ended))
		}
		for ; began != 0; began &= began - 1 {
			i := w<<6 + bits.TrailingZeros64(began)
			c := &v.Clocks[i]
			c.Run += now - c.Flip // a turn counts the time it could be used
			c.Flip = now
			v.Begin(i)
		}
		// Those that wait now and did not before may have an old wait to go on with.
		waiting := v.Ready[w] &^ d.next[w]
		for fresh := waiting &^ v.Waiting[w]; fresh != 0; fresh &= fresh - 1 {
			v.OldestWait = min(v.OldestWait, v.Clocks[w<<6+bits.TrailingZeros64(fresh)].Wait)
		}
		v.Waiting[w] = waiting
	}
	d.round = v.Round()
}

// chanceEnded notes what a queue got from its chance, for certain: beside others, whose
// slices are a round with its own, all of theirs may have come first.
func (e *Engine) chanceEnded(now model.Time, d *device, i int) {
	v := &d.view
	c := &v.Clocks[i]
	c.Credit += max(0, now.Sub(c.Flip)-switchCost-max(0, d.round-v.SliceOf(i)))
	c.Flip = now
	if c.Credit >= realProgress {
		c.Wait, c.Credit = now, 0
	}
	v.End(i) // after the wait: a key may depend on it
	if d.tiny.Has(i) && v.Running.Has(i) && v.Ready.Has(i) {
		r := d.records[i]
		e.stats.Yields++
		r.state.Yields++
		d.blame(r, v.Ready, d.applied)
	}
}
