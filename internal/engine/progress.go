// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

const (
	// switchCost is the overhead of one chance to progress: a switch in and a
	// switch out.
	switchCost = 400 * time.Microsecond
	// realProgress ends a wait. Many chances that are each too short for a switch
	// are no progress.
	realProgress = time.Millisecond
)

// account charges the GPU time since the last call: queues that could progress
// shared it in proportion to their slices.
func (d *device) account(now model.Time) {
	elapsed := now.Sub(d.accounted)
	if elapsed <= 0 {
		return
	}
	d.accounted = now
	d.chargeBlockers(now, elapsed)
	rounds := float64(elapsed) / float64(d.round)
	for i := range d.view.Queues {
		if q := &d.view.Queues[i]; q.Progressing {
			got := time.Duration(float64(q.Slice)*rounds + 0.5)
			q.Active, q.Got = q.Active+elapsed, q.Got+got
			if q.Pool > 0 {
				d.view.Pools[q.Pool-1].Got += got
			}
		}
	}
}

// updateProgress finds the queues that progress from now on, under the verdicts
// in force.
func (e *Engine) updateProgress(now model.Time, d *device) {
	var c policy.Contention
	for i := range d.view.Queues {
		q := &d.view.Queues[i]
		c.Add(q, q.Verdict)
	}
	was := d.round
	d.round = 0
	var b blockage
	for i := range d.view.Queues {
		q := &d.view.Queues[i]
		q.Slice = cmp.Or(q.Verdict.Slice, d.view.Knobs.NativeSlice)
		progresses := c.Progresses(q, q.Verdict)
		switch {
		case q.Progressing && !progresses:
			e.progressEnds(now, d, i, was)
		case !q.Progressing && progresses:
			d.records[i].since = now
		}
		if q.Progressing = progresses; progresses {
			d.round += q.Slice
		}
		d.records[i].setWaits(now, q.Busy && !progresses && !q.Copying)
		b.add(i, q)
	}
	d.setBlockers(&b)
}

// progressEnds credits a queue with the least it can have got: beside others,
// whose slices formed a round with its own, all of theirs may have come first.
func (e *Engine) progressEnds(now model.Time, d *device, i int, round time.Duration) {
	q, r := &d.view.Queues[i], d.records[i]
	r.credit += max(0, now.Sub(r.since)-switchCost-max(0, round-q.Slice))
	if r.credit >= realProgress {
		q.WaitSince, r.credit = now, 0
	}
	if q.Running && q.Ready && q.Verdict.Slice != 0 && q.Verdict.Slice < policy.UsefulSlice {
		e.stats.Yields++
		r.state.Yields++
		d.attribute(r, func(j int) bool { return d.view.Queues[j].Verdict.Run })
	}
}

// startWait begins the wait of a queue that became ready.
func (d *device) startWait(now model.Time, r *record) {
	d.queue(r).WaitSince, r.credit = now, 0
}
