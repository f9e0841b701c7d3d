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

// account brings RunSince, WaitSince and the waiting set up to now: it is the
// one place where "progress on the GPU" is defined. It runs before a decision,
// for what the applications did, and after one, for what the plan did.
func (e *Engine) account(now model.Time, d *device) {
	v := &d.view
	policy.Chances(v.Ready, v.Running, d.long, d.tiny, d.next)
	for w := range d.next {
		ended, began := d.chance[w]&^d.next[w], d.next[w]&^d.chance[w]
		d.chance[w] = d.next[w]
		for ; ended != 0; ended &= ended - 1 {
			e.chanceEnded(now, d, w<<6+bits.TrailingZeros64(ended))
		}
		for ; began != 0; began &= began - 1 {
			r := d.records[w<<6+bits.TrailingZeros64(began)]
			// A turn counts the time it could be used.
			v.Queues[r.index].RunSince += now - r.flip
			r.chance, r.flip = true, now
		}
		// Those that wait now and did not before may have an old wait to go on with.
		waiting := v.Ready[w] &^ d.next[w]
		for fresh := waiting &^ v.Waiting[w]; fresh != 0; fresh &= fresh - 1 {
			v.OldestWait = min(v.OldestWait, v.Queues[w<<6+bits.TrailingZeros64(fresh)].WaitSince)
		}
		v.Waiting[w] = waiting
	}
}

// chanceEnded notes what a queue got from its chance.
func (e *Engine) chanceEnded(now model.Time, d *device, i int) {
	r, q := d.records[i], &d.view.Queues[i]
	r.credit += max(0, now.Sub(r.flip)-switchCost)
	r.chance, r.flip = false, now
	if r.credit >= realProgress {
		q.WaitSince, r.credit = now, 0
	}
	if q.Running && q.Ready() && d.tiny.Has(i) {
		e.stats.Yields++
		r.state.Yields++
		d.blame(r, d.view.Ready, d.applied)
	}
}

// startWait begins the wait of a queue that became ready.
func (r *record) startWait(now model.Time, q *model.Queue) {
	q.WaitSince, r.credit = now, 0
}
