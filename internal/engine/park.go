// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// This file keeps idle queues out of the decisions of a crowded device. A decision costs time for
// every queue in the view, and a program may create thousands that it never uses. A parked queue is
// not in the view. It is suspended at Lv1, so that its next launch waits for a decision; at other
// levels it runs, as idle queues do. It returns to the view as soon as it has work.
//
// Beside few queues none is parked: there the next launch need not wait.
const (
	parkAfter  = time.Second
	parkPeriod = 250 * time.Millisecond
)

// parkTop queues of the highest rank stay in the view: the lower ones then run as beside a service, so
// that its next request need not wait until they are suspended.
const parkTop = 16

// parkAbove is the size of a view in which queues are parked; only tests change it.
var parkAbove = 64

// parkedTarget is the latency target of the parked queues of a process.
type parkedTarget struct {
	queues int
	slo    model.SLO
	capped bool
}

// parkable reports that no decision depends on a queue until it has work.
func parkable(now model.Time, q *policy.Queue) bool {
	return !q.Busy && !q.Ready && !q.Progressing && !q.Held && !q.Guessed && q.Hint.Gang == "" &&
		(q.ChangedAt == 0 || now.Sub(q.ChangedAt) >= parkAfter)
}

// parkIdle parks idle queues before a decision.
func (e *Engine) parkIdle(now model.Time, d *device) {
	if len(d.records) <= parkAbove || !d.grown && now < d.nextPark {
		return
	}
	d.grown, d.nextPark = false, now.Add(parkPeriod)
	if d.stale {
		d.sort()
	}
	top := 0
	for top < min(parkTop, len(d.records)) && d.view.Queues[top].Rank == d.view.Queues[0].Rank {
		top++
	}
	for i := len(d.records) - 1; i >= top; i-- {
		if parkable(now, &d.view.Queues[i]) {
			e.park(now, d, d.records[i])
		}
	}
}

func (e *Engine) park(now model.Time, d *device, r *record) {
	q := *d.queue(r)
	q.Hint, q.Rivalled, q.Contested = r.hint, false, false
	d.remove(now, r.index)
	q.Verdict, q.Running = d.parkedVerdict(), d.parkedVerdict().Run
	q.Group, q.Pool, q.Spare, q.Slice, r.gang = -1, 0, 0, 0, nil
	r.parked, r.index = &q, len(d.parked)
	d.parked = append(d.parked, r)
	d.countTarget(&q, 1)
	e.send(r, q.Verdict)
}

// parkedVerdict is the verdict for parked queues.
func (d *device) parkedVerdict() model.Verdict { return model.Verdict{Run: !d.cfg.suspends()} }

// unpark returns a queue to the view.
func (d *device) unpark(r *record) {
	if r.parked == nil {
		return
	}
	q := *r.parked
	d.dropParked(r)
	r.parked = nil
	r.index = len(d.records)
	d.view.Queues = append(d.view.Queues, q)
	d.records = append(d.records, r)
	d.restructure()
}

func (d *device) dropParked(r *record) {
	d.countTarget(r.parked, -1)
	last := len(d.parked) - 1
	d.parked[r.index] = d.parked[last]
	d.parked[r.index].index = r.index
	d.parked[last] = nil
	d.parked = d.parked[:last]
}

// countTarget keeps the latency targets of processes whose queues are all parked.
func (d *device) countTarget(q *policy.Queue, by int) {
	if !q.Hint.SLO.Said() {
		return
	}
	t := d.parkedTargets[q.PID]
	if t.queues += by; t.queues == 0 {
		delete(d.parkedTargets, q.PID)
		return
	}
	if t.slo, t.capped = q.Hint.SLO, q.Hint.Cap.On; d.parkedTargets == nil {
		d.parkedTargets = map[int]parkedTarget{}
	}
	d.parkedTargets[q.PID] = t
}

// resendParked reports the state of parked queues after a change of the mode or of their level.
func (e *Engine) resendParked(d *device) {
	changed := d.resend
	if d.modeChanged {
		changed = d.parked
	}
	verdict := d.parkedVerdict()
	for _, r := range changed {
		if r.parked != nil {
			r.parked.Verdict, r.parked.Running = verdict, verdict.Run
			e.send(r, verdict)
		}
	}
	clear(d.resend)
	d.modeChanged, d.resend = false, d.resend[:0]
}

// size is the number of queues of the device, parked or not.
func (d *device) size() int { return len(d.records) + len(d.parked) }
