// SPDX-License-Identifier: Apache-2.0

package history

import (
	"time"

	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// Sample adds a point to every series, from a snapshot of all programs. The caller samples about once
// per FineStep; a late sample fills the steps that it missed.
func (h *History) Sample(now model.Time, programs []loop.ClientView) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(now)
	h.name(programs)
	if h.resync {
		h.restate(now, programs)
	}
	elapsed := now.Sub(h.sampled)
	step := int64(now) / int64(FineStep)
	if elapsed <= 0 || step <= h.step {
		return
	}
	for i := range programs {
		h.total(now, &programs[i])
	}
	first := max(h.step+1, step-points+1)
	for _, l := range h.lanes {
		l.wait(now, h.sampled)
		p := l.point(elapsed, int(step-h.step))
		for s := first; s <= step; s++ {
			l.fine[s%points] = p
		}
		for s := first; s <= step; s++ {
			if s%(int64(CoarseStep)/int64(FineStep)) == 0 {
				l.sum(s)
			}
		}
	}
	h.step, h.sampled = step, now
	h.forget(now)
}

// name updates the names of programs. A snapshot may have some that were reported as ended.
func (h *History) name(programs []loop.ClientView) {
	for i := range programs {
		who := programs[i].Identity
		if was, alive := h.programs[who.ID]; alive && was != who {
			h.programs[who.ID], h.byPID[who.PID] = who, who
		}
	}
	for _, l := range h.lanes {
		if who, ok := h.programs[l.key.session]; ok {
			l.who = who
		}
	}
}

// current are the totals of a lane in a sample.
type current struct {
	ran         time.Duration
	preemptions uint64
}

// total takes over the totals of a program.
func (h *History) total(now model.Time, p *loop.ClientView) {
	sums := map[model.DeviceID]current{}
	for i := range p.Queues {
		q := &p.Queues[i]
		c := sums[q.Device]
		c.ran, c.preemptions = c.ran+q.Ran, c.preemptions+q.Preemptions+q.Yielded
		sums[q.Device] = c
	}
	for device, c := range sums {
		l := h.lanes[laneKey{p.ID, device}]
		if l == nil {
			if c.ran == 0 && c.preemptions == 0 {
				continue
			}
			if l = h.lane(now, p.ID, p.PID, device); l == nil {
				continue
			}
			if p.Age > 2*FineStep { // what it did before is unknown
				l.seen, l.ran, l.preemptions = true, c.ran, c.preemptions
			}
		}
		l.now, l.sampled = c, true
	}
}

// point returns the current step of a lane, which covers a number of steps.
func (l *lane) point(elapsed time.Duration, steps int) Point {
	var p Point
	if l.sampled {
		ran, preemptions := l.now.ran, l.now.preemptions
		if l.seen && (ran < l.ran || preemptions < l.preemptions) { // queues have ended
			l.ran, l.preemptions = ran, preemptions
		}
		// Several queues may have run at once, and waited together.
		p.Share = float32(min(max(0, ran-l.ran), elapsed-min(l.waited, elapsed))) / float32(elapsed)
		p.Preemptions = uint32(min((preemptions-l.preemptions)/uint64(steps), 1<<32-1))
		l.ran, l.preemptions, l.seen, l.sampled = ran, preemptions, true, false
	}
	p.Waited = float32(min(l.waited, elapsed)) / float32(elapsed)
	l.waited = 0
	p.P99US = l.fineLat.p99()
	l.fineLat.reset()
	return p
}

// sum adds a coarse point for the steps up to s.
func (l *lane) sum(s int64) {
	const n = int64(CoarseStep) / int64(FineStep)
	var p Point
	for k := s - n + 1; k <= s; k++ {
		f := &l.fine[k%points]
		p.Share += f.Share / float32(n)
		p.Waited += f.Waited / float32(n)
		p.Preemptions += f.Preemptions
	}
	p.P99US = l.coarseLat.p99()
	l.coarseLat.reset()
	l.coarse[s/n%points] = p
}

// forget drops the lanes of programs that ended more than an hour ago.
func (h *History) forget(now model.Time) {
	for _, l := range h.lanes {
		if l.left != 0 && now.Sub(l.left) > points*CoarseStep {
			h.drop(l)
		}
	}
}

// restate sets the states of all queues from a sample, because transitions were lost.
func (h *History) restate(now model.Time, programs []loop.ClientView) {
	known := make(map[model.QueueID]bool, len(h.queues))
	for i := range programs {
		p := &programs[i]
		for k := range p.Queues {
			q := &p.Queues[k]
			t := engine.Transition{At: now, ID: model.QueueID{Session: p.ID, Index: q.Index}, PID: p.PID, Device: q.Device}
			switch {
			case !q.Busy:
			case q.Want.Suspend != 0 || p.Held:
				t.To = engine.ActivityStopped
			case q.Yields:
				t.To = engine.ActivityWait
			default:
				t.To = engine.ActivityRun
			}
			known[t.ID] = true
			h.apply(&t)
		}
	}
	for id := range h.queues {
		if !known[id] {
			h.apply(&engine.Transition{At: now, ID: id, Gone: true})
		}
	}
	h.resync, h.complete = false, now
}
