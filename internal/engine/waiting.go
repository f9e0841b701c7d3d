// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sort"
	"time"

	"xsched/internal/model"
)

// This file accounts when sessions wait: a queue has work and is kept from running, by the policy,
// by the timeslices of others or by hand. Requests are known only after they ended, so the account
// answers for the past. Its memory is bounded: older times become less exact.

// waiting is the account of a session.
type waiting struct {
	queues int // of the session
	active int // of them: those that wait
	since  model.Time
	line   []waitPoint
}

// waitPoint is the total wait up to a time. Between two points the total grows evenly.
type waitPoint struct {
	at    model.Time
	total time.Duration
}

// maxWaitPoints bounds the account: each wait takes two points.
const maxWaitPoints = 256

// begin reports that another queue waits.
func (w *waiting) begin(now model.Time) {
	if w.active++; w.active == 1 {
		w.since = max(now, w.last().at)
		w.push(waitPoint{w.since, w.last().total})
	}
}

// end reports that a queue waits no longer.
func (w *waiting) end(now model.Time) {
	if w.active--; w.active == 0 {
		w.push(waitPoint{max(now, w.since), w.last().total + max(0, now.Sub(w.since))})
	}
}

func (w *waiting) last() waitPoint {
	if len(w.line) == 0 {
		return waitPoint{}
	}
	return w.line[len(w.line)-1]
}

func (w *waiting) push(p waitPoint) {
	n := len(w.line)
	switch {
	case n > 0 && w.line[n-1] == p:
		return // one wait follows another
	case n == maxWaitPoints:
		w.thin()
	}
	w.line = append(w.line, p)
}

// thin removes every second point of the older half. The first one stays: before it is no wait.
func (w *waiting) thin() {
	kept := w.line[:1]
	for i := 2; i < len(w.line); i++ {
		if i >= maxWaitPoints/2 || i%2 == 0 {
			kept = append(kept, w.line[i])
		}
	}
	w.line = kept
}

// upTo is the total wait until a time.
func (w *waiting) upTo(at model.Time) time.Duration {
	if w.active > 0 && at >= w.since {
		return w.last().total + at.Sub(w.since)
	}
	i := sort.Search(len(w.line), func(i int) bool { return w.line[i].at > at })
	switch {
	case i == 0:
		return 0
	case i == len(w.line):
		return w.last().total
	}
	a, b := w.line[i-1], w.line[i]
	if b.total-a.total == b.at.Sub(a.at) {
		return a.total + at.Sub(a.at) // one wait
	}
	part := float64(at.Sub(a.at)) / float64(b.at.Sub(a.at))
	return a.total + time.Duration(part*float64(b.total-a.total))
}

// setWaits sets whether a queue waits.
func (r *record) setWaits(now model.Time, waits bool) {
	switch {
	case r.waits == waits:
		return
	case waits:
		r.session.begin(now)
	default:
		r.session.end(now)
	}
	r.waits = waits
}

// joinSession adds a queue to the account of its session.
func (e *Engine) joinSession(id model.SessionID, r *record) {
	w := e.sessions[id]
	if w == nil {
		w = &waiting{}
		e.sessions[id] = w
	}
	w.queues++
	r.session = w
}

// leaveSession removes a queue from the account of its session.
func (e *Engine) leaveSession(now model.Time, id model.SessionID, r *record) {
	r.setWaits(now, false)
	if r.session.queues--; r.session.queues == 0 {
		delete(e.sessions, id)
	}
}

// Waited returns for how long a queue of a session had work and was kept from running in a period
// of the past. Several queues that wait at the same time count once.
func (e *Engine) Waited(id model.SessionID, from, to model.Time) time.Duration {
	w := e.sessions[id]
	if w == nil || to <= from {
		return 0
	}
	return max(0, w.upTo(to)-w.upTo(from))
}
