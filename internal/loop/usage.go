// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"time"

	"xsched/internal/model"
)

// This file counts who could use the GPU when, and who had to stop for whom. It
// is what the queues show: that work was submitted and allowed to run.

// queueUse is the time a queue had work and was allowed to run.
type queueUse struct {
	since model.Time // 0: not now
	total time.Duration
}

func (u *queueUse) upTo(now model.Time) time.Duration {
	if u.since == 0 {
		return u.total
	}
	return u.total + max(0, now.Sub(u.since))
}

// gpuTime is the time at least one queue of a GPU had work and was allowed to run.
type gpuTime struct {
	queues, active int
	use            queueUse
}

// gpuTimes is by device. A client names the devices of its queues, so what is
// kept of those without queues is bounded.
type gpuTimes map[model.DeviceID]*gpuTime

const maxIdleGPUs = 64

func (g gpuTimes) enter(now model.Time, q *queue) {
	if g[q.device] == nil {
		g[q.device] = &gpuTime{}
	}
	g[q.device].queues++
	g.note(now, q)
}

func (g gpuTimes) leave(now model.Time, q *queue) {
	q.busy = false
	g.note(now, q)
	t := g[q.device]
	if t.queues--; t.queues == 0 && len(g) > maxIdleGPUs {
		delete(g, q.device)
	}
}

// note brings the account of a queue and of its device up to now.
func (g gpuTimes) note(now model.Time, q *queue) {
	g.set(now, q, q.busy && q.want.Suspend == 0 && !q.quiet)
}

// pause ends the account of a queue whose client keeps it from now on.
func (g gpuTimes) pause(now model.Time, q *queue) { g.set(now, q, false) }

func (g gpuTimes) set(now model.Time, q *queue, active bool) {
	if active == (q.use.since != 0) {
		return
	}
	t := g[q.device]
	if active {
		q.use.since = now
		if t.active++; t.active == 1 {
			t.use.since = now
		}
		return
	}
	q.use.total, q.use.since = q.use.upTo(now), 0
	if t.active--; t.active == 0 {
		t.use.total, t.use.since = t.use.upTo(now), 0
	}
}

// worked takes over what the client of a queue has added up, which is then the only queue of its
// GPU. No more than the time that has passed: the rest, if it was true, comes with the next reading,
// which may be one of the next time it is quiet. So a client that is held up between looking at the
// clock and writing the page loses nothing, and what was counted too early meanwhile counts once.
func (g gpuTimes) worked(now model.Time, q *queue, total time.Duration) {
	more := min(max(0, total-q.worked), max(0, now.Sub(q.workedAt)))
	q.worked, q.workedAt = q.worked+more, max(now, q.workedAt)
	q.use.total += more
	g[q.device].use.total += more
}

func (l *Loop) note(now model.Time, q *queue) { l.gpus.note(now, q) }

// Causes of a preemption that are no process.
const (
	ByHand   = -1 // suspended by a person
	ByOthers = 0  // nobody in particular, or one of more than are told apart
)

// maxCauses is how many processes a queue tells apart among those it stopped for.
const maxCauses = 16

// blame counts why a queue has to stop.
func (l *Loop) blame(c *Client, q *queue) {
	cause := ByHand
	if !c.held {
		cause = l.engine.StoppedFor(q.id)
	}
	if q.stoppedBy == nil {
		q.stoppedBy = map[int]uint64{}
	}
	if _, known := q.stoppedBy[cause]; !known && cause > 0 && len(q.stoppedBy) >= maxCauses {
		cause = ByOthers
	}
	q.stoppedBy[cause]++
}

// GPUTimes returns for how long each GPU had work that was allowed to run.
func (l *Loop) GPUTimes(ctx context.Context) (map[model.DeviceID]time.Duration, error) {
	out := map[model.DeviceID]time.Duration{}
	err := l.call(ctx, func() {
		now := l.now()
		l.sample(now)
		for id, t := range l.gpus {
			out[id] = t.use.upTo(now)
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
