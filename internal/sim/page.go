// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"xsched/internal/model"
)

// This file models what a program's library tells the daemon: the page with its queues, and the
// watcher that finds idle queues.

// page is a queue's slot in the shared page; wire.h has the real one.
type page struct {
	transitions uint64     // odd: busy
	changed     model.Time // when
	fed         model.Time // when the program last began to wait
	submitted   uint64
	launches    uint64 // kernels
	bursts      uint64 // batches that were released
	copies      uint64
	waits       uint64
}

func (p *page) busy() bool { return p.transitions%2 == 1 }

func (p *page) progress(waits bool) model.Progress {
	return model.Progress{Launches: p.launches, Bursts: p.bursts, Waits: waits}
}

// wait records that the program begins to wait for what it has submitted.
func (p *page) wait(now model.Time) {
	p.waits++
	p.fed = now
}

// daemonView is what the daemon knows of a queue.
type daemonView struct {
	transitions uint64
	began       model.Time // last transition
	waits       uint64
	busy        bool
}

// mark changes the queue between idle and busy, and rings the daemon's doorbell.
func (r *rank) mark(busy bool) {
	if r.page.busy() == busy {
		return
	}
	c := r.inst.cell
	r.page.transitions++
	r.page.changed = c.now
	if busy && r.inst.watched {
		r.watchBusy()
	}
	r.ring()
}

// waits records that the program begins to wait, and tells the daemon if it asked for that.
func (r *rank) waits() {
	r.page.wait(r.inst.cell.now)
	if r.page.busy() && r.inst.cell.engine.Follow(r.id) {
		r.ring()
	}
}

// ring rings the daemon's doorbell.
func (r *rank) ring() {
	if r.rung {
		return
	}
	c := r.inst.cell
	r.rung = true
	c.rung = append(c.rung, r)
	c.bell = min(c.bell, c.now.Add(c.plan.reaction))
}

// scan models the daemon's read of rung pages (internal/loop). A queue that changed twice in between
// looks unchanged.
func (c *cell) scan() {
	c.events++
	for _, r := range c.rung {
		r.rung = false
		if !r.joined {
			continue
		}
		r.seeCopies()
		waited := r.page.waits != r.known.waits
		r.known.waits = r.page.waits
		if r.page.transitions == r.known.transitions {
			if waited {
				c.engine.SetProgress(c.now, r.id, r.page.progress(true))
				c.dirty = true
			}
			continue
		}
		fed := time.Duration(0)
		tail := r.page.changed.Sub(r.page.fed)
		switch {
		case r.page.transitions == r.known.transitions+2 && r.page.busy() && r.page.fed > r.known.began && r.page.fed < r.page.changed:
			fed = r.page.fed.Sub(r.known.began)
		case r.page.transitions != r.known.transitions+1 || r.page.busy():
		case r.page.fed < r.known.began:
			fed = model.NotWaited
		case r.page.fed <= r.page.changed:
			fed = max(1, r.page.fed.Sub(r.known.began))
		}
		again := r.page.busy() && r.page.fed > r.known.began
		r.known.transitions, r.known.began = r.page.transitions, r.page.changed
		busy := r.page.busy()
		if busy == r.known.busy {
			if again { // idle for a moment that nobody saw
				c.engine.SetProgress(c.now, r.id, r.page.progress(fed > 0))
				c.engine.SetIdleAfter(c.now, r.id, fed, tail)
				c.engine.SetBusy(c.now, r.id, true)
				if r.page.fed >= r.page.changed {
					c.engine.SetProgress(c.now, r.id, r.page.progress(true))
				}
				c.dirty = true
			}
			continue
		}
		r.known.busy = busy
		if busy && c.now >= epoch.Add(c.plan.warmup) {
			c.classes[r.inst.class].periods++
		}
		c.engine.SetProgress(c.now, r.id, r.page.progress(busy && waited || fed > 0))
		if busy {
			c.engine.SetBusy(c.now, r.id, true)
			if waited && r.page.fed >= r.page.changed {
				c.engine.SetProgress(c.now, r.id, r.page.progress(true))
			}
		} else {
			c.engine.SetIdleAfter(c.now, r.id, fed, tail)
		}
		c.dirty = true
	}
	c.rung = c.rung[:0]
}

// The watcher's times, as in shim/core/work_watch.c.
const (
	watchShortest = 250 * time.Microsecond // between two questions about a queue
	watchEasy     = 2 * time.Millisecond   // while it is submitting
	watchLongest  = 10 * time.Millisecond  // also between two looks without a busy queue
	watchLinger   = time.Second            // idle for this long: the watcher sleeps until woken
)

// watch is the watcher's state for a queue.
type watch struct {
	armed  bool       // a timer is set
	at     model.Time // of the next look, or of the last one that found the queue idle
	since  model.Time // first look of this busy period; 0: none yet
	period uint64     // transitions then
	mark   uint64     // submissions at the last look
}

// watchBusy schedules the first look at a queue that became busy.
func (r *rank) watchBusy() {
	c, w := r.inst.cell, &r.watch
	if w.armed {
		return
	}
	if idle := c.now.Sub(w.at); w.at == 0 || idle >= watchLinger {
		w.at = c.now
	} else { // looks go on at intervals
		w.at = w.at.Add((idle/watchLongest + 1) * watchLongest)
	}
	w.armed = true
	c.timers.Push(w.at, timer{timerWatch, r.inst})
}

// look models one look of the watcher. It asks the device about a queue without a new submission
// since the last look, unless a thread waits for the queue anyway.
func (r *rank) look() {
	c, w, p := r.inst.cell, &r.watch, &r.page
	if !r.joined || !p.busy() {
		w.armed, w.at = false, c.now
		return
	}
	submits := w.mark != p.submitted
	w.mark = p.submitted
	if w.since == 0 || w.period != p.transitions {
		w.since, w.period = c.now, p.transitions
		w.at = c.now.Add(watchShortest)
	} else {
		wait := min(max(c.now.Sub(w.since)/8, watchShortest), watchLongest)
		if submits {
			wait = min(wait, watchEasy)
		}
		w.at = c.now.Add(wait)
		waited := r.inst.blocked || r.serving < r.inst.launching || len(r.inst.returning) > 0
		if !submits && !waited && r.flying == 0 && len(r.held) == 0 && len(r.batch.work) == 0 {
			r.mark(false)
		}
	}
	c.timers.Push(w.at, timer{timerWatch, r.inst})
}
