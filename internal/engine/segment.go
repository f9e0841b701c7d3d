// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// This file follows how programs submit their requests, for policies that stop
// lower queues shortly before a program waits (predict.Program).

// segment reports a change between idle and busy to the segments of a queue. fed
// and tail are as for SetIdleAfter; a tail of 0 is derived.
func (r *record) segment(now model.Time, q *policy.Queue, busy bool, fed, tail time.Duration) {
	length := now.Sub(q.ChangedAt)
	switch {
	case busy:
		r.segments.Begin(now, r.progress.Launches)
	case fed == model.NotWaited:
		r.segments.Pause(now)
	case q.ChangedAt == 0 || r.dev.size() == 1:
		r.segments.Drop(now)
	case fed <= 0:
		r.segments.Unseen(now, r.lows(now, q))
	default:
		fed = min(fed, length)
		if tail == 0 || tail > length {
			tail = length - fed
		}
		switch {
		case q.Verdict.Gather == 0:
		case r.progress.Bursts != r.bursts:
			r.segments.Gathered = model.Gathered
		default:
			r.segments.Gathered = model.NotGathered
		}
		r.bursts = r.progress.Bursts
		r.segments.End(now, q.ChangedAt, fed, tail, r.lows(now, q))
	}
	q.Feeding = r.segments.Feeding()
}

// lows reports what lower queues did when a segment ended.
func (r *record) lows(now model.Time, q *policy.Queue) model.Lower {
	if r.parked != nil {
		return model.LowerIdle
	}
	work, run := false, false
	for i := r.index + 1; i < len(r.dev.view.Queues) && !run; i++ {
		low := &r.dev.view.Queues[i]
		if low.Rank < q.Rank && low.Ready {
			work, run = true, low.Running
		}
	}
	stop, _ := q.Feeding.Stops(now)
	switch {
	case !work:
		return model.LowerIdle
	case q.Native || !r.dev.ordered() || !r.dev.view.CanSuspend:
		return model.LowerCompete
	case q.Feeding.Class != model.ClassLaunchBound || stop && run || !r.dev.view.LaunchBound.InTime():
		return model.LowerIdle
	}
	return model.LowerYield
}

// SetProgress reports the progress of a queue's program. Report it before SetBusy
// and SetIdle, when a thread begins to wait, and for the queues of ProgressDue.
func (e *Engine) SetProgress(now model.Time, id model.QueueID, progress model.Progress) {
	r := e.queues[id]
	if r == nil {
		return
	}
	e.saw(Event{Kind: EventProgress, At: now, ID: id, Count: progress.Launches, Bursts: progress.Bursts, On: progress.Waits})
	r.progress = progress
	r.segments.Progress(now, progress.Launches, progress.Waits)
	q := r.dev.queue(r)
	if f := r.segments.Feeding(); f != q.Feeding {
		q.Feeding = f
		r.dev.mark()
	}
}

// ProgressDue appends the queues whose progress the next decision needs.
func (e *Engine) ProgressDue(now model.Time, ids []model.QueueID) []model.QueueID {
	for _, d := range e.agenda.checks {
		if now < d.check {
			continue
		}
		for i := range d.view.Queues {
			if q := &d.view.Queues[i]; q.Feeding.CheckAt != 0 && now >= q.Feeding.CheckAt {
				ids = append(ids, q.ID)
			}
		}
	}
	return ids
}

// Follow reports that decisions depend on the progress of a queue's program.
func (e *Engine) Follow(id model.QueueID) bool {
	r := e.queues[id]
	return r != nil && r.segments.Followed() && r.dev.size() > 1
}
