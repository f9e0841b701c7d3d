// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"maps"
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// This file accounts busy time, preemptions and yields. A queue uses its GPU while it has work, is not
// suspended and does not yield to longer timeslices.

// queueUse is the time during which a queue used its GPU.
type queueUse struct {
	since model.Time // start of the current period; 0: none
	total time.Duration
}

func (u *queueUse) upTo(now model.Time) time.Duration {
	if u.since == 0 {
		return u.total
	}
	return u.total + max(0, now.Sub(u.since))
}

// gpuTime is the time during which at least one queue used a GPU. That of all clients is in real time,
// that of one client in time of the GPU's turns.
type gpuTime struct {
	queues, active int
	use            queueUse
	turns          turns
	recent         recentUse
}

// set updates the number of queues that use the GPU. It reports whether the first began or the last ended.
func (t *gpuTime) set(now model.Time, active bool) (changed bool) {
	if active {
		if t.active++; t.active == 1 {
			t.use.since = now
			return true
		}
		return false
	}
	if t.active--; t.active == 0 {
		t.use.total, t.use.since = t.use.upTo(now), 0
		return true
	}
	return false
}

// turns is a clock that divides a GPU's time among the clients that use it at once: it runs at 1/n of
// real time while n clients do. So the times of all clients together never exceed real time.
type turns struct {
	clients int
	changed model.Time
	passed  float64 // nanoseconds; shorter steps than one matter with many clients
}

// at reads the clock. It is never 0, which means no time in queueUse.
func (t *turns) at(now model.Time) model.Time { return 1 + model.Time(t.upTo(now)) }

func (t *turns) upTo(now model.Time) float64 {
	if t.clients == 0 || now <= t.changed {
		return t.passed
	}
	return t.passed + float64(now.Sub(t.changed))/float64(t.clients)
}

// add changes the number of clients that use the GPU.
func (t *turns) add(now model.Time, clients int) {
	t.passed, t.changed = t.upTo(now), max(now, t.changed)
	t.clients += clients
}

// gpuTimes has the times of each device. Clients name the devices of their queues, so the number of
// devices without queues is bounded.
type gpuTimes map[model.DeviceID]*gpuTime

const maxIdleGPUs = 64

func (g gpuTimes) of(now model.Time, gpu model.DeviceID) *gpuTime {
	if g[gpu] == nil {
		g[gpu] = &gpuTime{recent: recentFrom(now)}
	}
	return g[gpu]
}

// drop ends the part of a queue; so many devices without queues are kept.
func (g gpuTimes) drop(gpu model.DeviceID, keep int) {
	if t := g[gpu]; t != nil {
		if t.queues--; t.queues == 0 && len(g) > keep {
			delete(g, gpu)
		}
	}
}

func (g gpuTimes) enter(now model.Time, q *queue) {
	g.of(now, q.device).queues++
	if q.owner != nil { // nil in tests
		q.owner.uses.of(now, q.device).queues++
	}
	g.note(now, q)
}

func (g gpuTimes) leave(now model.Time, q *queue) {
	g.set(now, q, false)
	keep := maxIdleGPUs
	if q.unlisted {
		keep = 0 // nothing says that the device exists
	}
	g.drop(q.device, keep)
	if q.owner != nil {
		q.owner.uses.drop(q.device, maxGPUs)
	}
}

// note updates the account of a queue and its device.
func (g gpuTimes) note(now model.Time, q *queue) {
	g.set(now, q, q.busy && q.want.Suspend == 0 && !q.yields && !q.quiet && q.unproved == "")
}

// pause stops accounting for a queue whose client keeps the total from now on.
func (g gpuTimes) pause(now model.Time, q *queue) { g.set(now, q, false) }

func (g gpuTimes) set(now model.Time, q *queue, active bool) {
	if active == (q.use.since != 0) {
		return
	}
	q.owner.touch()
	if active {
		q.use.since = now
	} else {
		q.use.total, q.use.since = q.use.upTo(now), 0
	}
	gpu := g[q.device]
	gpu.set(now, active)
	if q.owner == nil || !q.owner.uses[q.device].set(gpu.turns.at(now), active) {
		return
	}
	if active {
		gpu.turns.add(now, 1)
	} else {
		gpu.turns.add(now, -1)
	}
}

// worked accounts the busy time of a quiet queue from its client's total. The client is not trusted:
// a reading adds at most the time that has passed since the last one. The remainder carries over to
// the next reading, also across periods of quiet. So a client that is delayed between reading the
// clock and writing the page loses nothing, and time accounted too early counts once.
func (g gpuTimes) worked(now model.Time, q *queue, total time.Duration) {
	more := min(max(0, total-q.worked), max(0, now.Sub(q.workedAt)))
	q.worked, q.workedAt = q.worked+more, max(now, q.workedAt)
	q.use.total += more
	q.owner.touch()
	g[q.device].use.total += more
	if q.owner != nil {
		q.owner.uses[q.device].use.total += more
	}
}

func (l *Loop) note(now model.Time, q *queue) { l.gpus.note(now, q) }

// Causes of a preemption other than a process.
const (
	ByHand   = engine.ByHand  // suspended by a control client
	ByGroup  = engine.ByGroup // suspended with its group of pods
	ByOthers = 0              // no particular process, or more processes than maxCauses
)

// maxCauses limits the number of processes that a queue counts preemptions for.
const maxCauses = 16

// accountYield updates the account of a queue that the hardware leaves for the longer timeslices of others,
// or that runs again.
func (l *Loop) accountYield(t engine.Transition) {
	c := l.clients[t.ID.Session]
	if c == nil {
		return
	}
	q := c.queues[t.ID.Index]
	if yields := t.To == engine.ActivityWait && !t.Gone; q == nil || q.id != t.ID || yields == q.yields {
		return
	}
	q.yields = !q.yields
	l.note(t.At, q)
	c.touch()
	if q.yields {
		q.yielded, q.yieldedAt = q.yielded+1, t.At
		q.countCause(t.By)
	} else {
		q.yieldedNS, q.yieldedAt = q.yieldedNS+max(0, t.At.Sub(q.yieldedAt)), 0
	}
}

// countPreemption counts a preemption of a queue by its cause.
func (l *Loop) countPreemption(c *Client, q *queue) {
	cause := l.heldBy(c.PID)
	if cause == 0 {
		cause = l.engine.StoppedFor(q.id)
	}
	q.countCause(cause)
}

func (q *queue) countCause(cause int) {
	if q.stoppedBy == nil {
		q.stoppedBy = map[int]uint64{}
	} else if q.shared {
		q.stoppedBy = maps.Clone(q.stoppedBy) // a snapshot has this one
	}
	q.shared = false
	if _, known := q.stoppedBy[cause]; !known && cause > 0 && len(q.stoppedBy) >= maxCauses {
		cause = ByOthers
	}
	q.stoppedBy[cause]++
}
