// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// SLO gives services with a latency target what they need for it, and the rest
// of the chip away. Services rank above all others. How much room the others have
// beside them is one of a few steps, from none to more than their share:
//
//	closed     lows are stopped while a service works, and for a lull after it, 5 ms at most
//	protected  as HPF: one low at a time, which the hardware leaves for the service
//	narrow     one low at a time, with the driver's slice beside ten times that of the service
//	wide       the same beside five times
//	even       both have the same slice
//	open       the low's is longer than the service's
//
// Lows take turns under all of them: between themselves that costs less than slices do.
// It begins protected. After each request the step is looked at: a service that
// misses its target takes room at once; one that meets it with something to spare, and
// that by what was measured would still meet it with less, gives some. A step that
// failed is not tried again for a while, and for twice as long each time. If even
// closed does not meet the target it can't be met: then the others have protected back,
// because stopping them does not help.
type SLO struct{}

var (
	_ Policy = SLO{}
	_ Ranker = SLO{}
)

// room is how much the others have beside the services.
type room int

const (
	roomClosed room = iota
	roomProtected
	roomNarrow
	roomWide
	roomEven
	roomOpen
	rooms
)

func (r room) String() string {
	return [rooms]string{"closed", "protected", "narrow", "wide", "even", "open"}[r]
}

// slices are those of services and lows; 0 where turns are used instead.
func (r room) slices(k *Knobs) (service, low time.Duration) {
	switch r {
	case roomNarrow:
		return 10 * k.NativeSlice, k.NativeSlice
	case roomWide:
		return 5 * k.NativeSlice, k.NativeSlice
	case roomEven:
		return k.Timeslice, k.Timeslice
	case roomOpen:
		return k.NativeSlice, k.PeerSlice
	}
	return 0, 0
}

const (
	// lullMost is how long lows stay stopped after a service at most, when there is no room at all.
	lullMost = 5 * time.Millisecond
	// firstRetry is how long a step that failed is left alone at first, lastRetry at last.
	firstRetry = 30 * time.Second
	lastRetry  = 10 * time.Minute
	// spare is which part of the target a service may need, by estimate, before more is given away.
	spare = 0.8
	// cost of a switch.
	oneSwitch = 200 * time.Microsecond
)

// control is what SLO remembers of a device.
type control struct {
	room   room
	begun  bool
	since  model.Time // of the room
	fresh  bool
	futile bool // no room for the others does not help
	retry  [rooms]model.Time
	wait   [rooms]time.Duration
}

// Name implements Policy.
func (SLO) Name() string { return "SLO" }

// Rank implements Ranker.
func (SLO) Rank(q *model.Queue, _ model.Priority) model.Priority {
	if q.Hint.SLO.Said() {
		return model.PriorityMax
	}
	return min(q.Hint.Priority, model.PriorityMax-1)
}

// Decide implements Policy.
func (SLO) Decide(now model.Time, v *View) (model.Plan, model.Time) {
	if len(v.Services) == 0 {
		return HPF{}.Decide(now, v)
	}
	c := &v.control
	if !c.begun {
		c.enter(now, v, roomProtected)
	}
	if c.fresh {
		c.fresh = false
		c.adjust(now, v)
	}
	switch {
	case c.room == roomProtected:
		return HPF{}.Decide(now, v)
	case c.room == roomClosed:
		return hpf{high: v.Knobs.HighSlice, low: v.Knobs.LowSlice, lull: v.lull()}.decide(now, v)
	}
	service, low := c.room.slices(&v.Knobs)
	return hpf{high: service, low: low}.decide(now, v)
}

// lull is how long lows stay stopped after a service, when there is no room at all: as long as a gap within a request
// may be that a target can bear, a tenth of the strictest one.
func (v *View) lull() time.Duration {
	lull := lullMost
	for _, s := range v.Services {
		lull = min(lull, s.Target.Latency/10)
	}
	return max(lull, v.Knobs.Hold)
}

// adjust looks at the step after a request has ended.
func (c *control) adjust(now model.Time, v *View) {
	missing, ready, spared := false, true, true
	for _, s := range v.Services {
		h := &s.here
		if c.room <= roomProtected && h.samples >= enough {
			s.base = h.value(s.Target.P())
			if c.room == roomClosed {
				s.tight = s.base
			}
		}
		fails := h.missed() > s.allowed()
		// One miss among few requests says nothing of a percentile and would cost the lows half a minute. Two are
		// enough to leave a step that was only tried.
		missing = missing || fails && h.misses >= 2 && (h.samples >= enough || c.room > roomProtected)
		ready = ready && (h.samples >= 2*enough || s.busy == 0 && h.samples == 0)
		spared = spared && !fails && float64(h.value(s.Target.P())) <= spare*float64(s.Target.Latency)
	}
	switch {
	case missing && c.room > roomProtected:
		c.fail(now)
		c.enter(now, v, roomProtected)
	case missing && c.room == roomProtected && now >= c.retry[roomClosed] && v.CanSuspend:
		c.fail(now) // do not come back before a while
		c.enter(now, v, roomClosed)
	case missing && c.room == roomClosed:
		c.futile = true
		c.wait[roomClosed] = max(c.wait[roomClosed], firstRetry)
		c.retry[roomClosed] = now.Add(c.wait[roomClosed])
		c.wait[roomClosed] = min(2*c.wait[roomClosed], lastRetry)
		c.enter(now, v, roomProtected)
	case missing || !ready:
	case c.room == roomClosed:
		c.futile = false
		if now >= c.retry[roomProtected] {
			c.enter(now, v, roomProtected)
		}
	case c.room < rooms-1 && spared:
		c.futile = false
		if next := c.next(now, v); next > c.room {
			c.enter(now, v, next)
		}
	}
}

// fail leaves the step in force alone for a while.
func (c *control) fail(now model.Time) {
	c.wait[c.room] = min(max(2*c.wait[c.room], firstRetry), lastRetry)
	c.retry[c.room] = now.Add(c.wait[c.room])
}

// next is the widest step, one at a time, at which by estimate everybody still has what he needs.
func (c *control) next(now model.Time, v *View) room {
	r := c.room + 1
	if now < c.retry[r] {
		return c.room
	}
	service, low := r.slices(&v.Knobs)
	if !v.slicesShare() {
		service, low = v.Knobs.NativeSlice, v.Knobs.NativeSlice // what the driver does
	}
	for _, s := range v.Services {
		turns := s.base/service + 1 // each after one of the low's
		if s.base == 0 || float64(s.base+turns*(low+2*oneSwitch)) > spare*float64(s.Target.Latency) {
			return c.room
		}
	}
	return r
}

// enter begins a step: what was measured under another one says nothing about it.
func (c *control) enter(now model.Time, v *View, r room) {
	c.room, c.since, c.begun = r, now, true
	for _, s := range v.Services {
		s.here.reset()
	}
}
