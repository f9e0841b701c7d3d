// SPDX-License-Identifier: Apache-2.0

package engine

import "xsched/internal/model"

// Activity is what a queue does, for a timeline.
type Activity uint8

// The activities of a queue. A queue without work is idle, whatever its verdict.
const (
	ActivityIdle    Activity = iota
	ActivityRun              // has work and may use the GPU
	ActivityWait             // has work, and the hardware prefers the longer slices of others
	ActivityStopped          // has work and is suspended
	Activities      = iota
)

// Causes in Transition.By other than a process. The engine does not know of groups: its user does.
const (
	ByHand  = -1 // a user suspended the process
	ByGroup = -2 // the process is suspended with its group of pods
)

// Transition is a change of a queue's activity.
type Transition struct {
	At     model.Time
	ID     model.QueueID
	PID    int
	Device model.DeviceID
	By     int // for ActivityWait and ActivityStopped: the PID in whose favour, ByHand or ByGroup; 0: unknown
	To     Activity
	Gone   bool // the queue was removed
}

// Watch calls f for every change of a queue's activity, from the goroutine that uses the engine. Unlike
// an observer, a watcher does not allocate and does not end the quiet of a queue that is alone.
func (e *Engine) Watch(f func(Transition)) { e.watcher = f }

// watch reports what changed on a device by a decision.
func (e *Engine) watch(now model.Time, d *device) {
	if e.watcher == nil {
		return
	}
	first := -1 // the first queue that uses the GPU
	for i, r := range d.records {
		q := &d.view.Queues[i]
		to := ActivityIdle
		switch {
		case !q.Busy:
		case r.sent.Suspend != 0 || q.Held:
			to = ActivityStopped
		case q.Progressing || q.Copying || !q.Ready:
			to = ActivityRun
		default:
			to = ActivityWait
		}
		if to == r.activity {
			continue
		}
		r.activity = to
		t := Transition{At: now, ID: q.ID, PID: q.PID, Device: d.id, To: to}
		if to == ActivityWait || to == ActivityStopped {
			if first < 0 {
				first = d.firstProgressing()
			}
			t.By = d.favoured(r, first)
		}
		e.watcher(t)
	}
}

// favoured returns the process for which a queue does not progress.
func (d *device) favoured(r *record, first int) int {
	q := d.queue(r)
	switch {
	case q.Held:
		return ByHand
	case first < len(d.records) && d.view.Queues[first].PID != q.PID:
		return d.view.Queues[first].PID
	}
	return r.state.PreemptedBy
}

func (d *device) firstProgressing() int {
	for i := range d.view.Queues {
		if d.view.Queues[i].Progressing {
			return i
		}
	}
	return len(d.records)
}
