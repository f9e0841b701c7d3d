// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"xsched/internal/model"
)

// SLO gives services with a latency target the time they need for it, and the
// rest of the device to the others ("lows"). Services rank above all lows. The
// room of the lows is one of a few steps:
//
//	closed     lows are suspended while a service works, and up to 5 ms after it
//	protected  as HPF: one low at a time, which the hardware leaves for the service
//	narrow     one low at a time, with the native slice beside ten times that of the service
//	wide       the same beside five times
//	even       both have the same slice
//	open       the slice of the low is longer than that of the service
//
// Lows take turns in every step: between themselves that costs less than slices.
// The first step is protected, and each finished request may change it. A service
// that misses its target takes room at once. One that meets it with a margin, and
// that by estimate would still meet it with less, gives some. After a failure a
// step is not tried again for a while, doubling each time. If even closed misses
// the target, it cannot be met: the lows return to protected, because suspending
// them does not help.
type SLO struct{}

// room is the share that the services leave to the lows.
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

// slices returns the slices of services and lows; 0 where only turns are used.
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
	// idleGapMost is how long lows stay suspended after a service at most, in
	// roomClosed.
	idleGapMost = 5 * time.Millisecond
	// firstRetry is the first back-off after a step failed, lastRetry the longest.
	firstRetry = 30 * time.Second
	lastRetry  = 10 * time.Minute
	// margin is the part of its target that a service may need, by estimate,
	// before it gives room away.
	margin = 0.8
	// switchCost is the cost of one context switch.
	switchCost = 200 * time.Microsecond
)

// sloState is the state of SLO for a device.
type sloState struct {
	turn   turn
	room   room
	since  model.Time // when the room was entered; 0: never
	futile bool       // even roomClosed does not help
	retry  [rooms]model.Time
	wait   [rooms]time.Duration

	services map[int]*sloService // by PID
}

// sloService is the state of SLO for a service.
type sloService struct {
	epoch   uint64
	recent  quantile      // requests that began and ended in the current room
	base    time.Duration // latency in roomProtected or less
	minimum time.Duration // latency in roomClosed
}

// Rank implements Ranker.
func (SLO) Rank(q *model.Queue, _ model.Priority) model.Priority {
	if q.Hint.SLO.Said() {
		return model.PriorityMax
	}
	return min(q.Hint.Priority, model.PriorityMax-1)
}

// Decide implements Policy.
func (SLO) Decide(now model.Time, v *View, s *sloState) (model.Plan, model.Time) {
	finished := s.observe(v)
	if len(v.Services) == 0 {
		return HPF{}.Decide(now, v, &s.turn)
	}
	if s.since == 0 {
		s.enter(now, roomProtected)
	}
	if finished {
		s.adjust(now, v)
	}
	switch s.room {
	case roomProtected:
		return HPF{}.Decide(now, v, &s.turn)
	case roomClosed:
		return hpf{high: v.Knobs.HighSlice, low: v.Knobs.LowSlice, idleGap: idleGap(v)}.decide(now, v, &s.turn)
	}
	service, low := s.room.slices(&v.Knobs)
	return hpf{high: service, low: low}.decide(now, v, &s.turn)
}

// observe evaluates the requests that finished since the last decision, and
// reports whether there were any.
func (s *sloState) observe(v *View) bool {
	if len(v.Services) == 0 {
		s.services, s.since = nil, 0 // the next services begin anew
		return false
	}
	finished, kept, known := false, false, s.services
	s.services = make(map[int]*sloService, len(v.Services))
	for _, service := range v.Services {
		m := known[service.PID]
		if m == nil {
			m = &sloService{epoch: service.Epoch}
		}
		if m.epoch != service.Epoch { // another target, or other requests
			m.epoch = service.Epoch
			m.recent.reset()
		}
		for _, r := range service.Finished {
			if finished = true; r.Began >= s.since {
				m.recent.add(r.Took, service.Target.Latency, service.Target.P())
			}
		}
		s.services[service.PID] = m
		kept = kept || known[service.PID] != nil
	}
	if !kept {
		s.since = 0 // the room is that of services which no longer count
	}
	return finished
}

// idleGap is how long lows stay suspended after a service in roomClosed: a tenth of
// the strictest target, the longest gap within a request that it can bear.
func idleGap(v *View) time.Duration {
	idleGap := idleGapMost
	for _, s := range v.Services {
		idleGap = min(idleGap, s.Target.Latency/10)
	}
	return max(idleGap, v.Knobs.Hold)
}

// adjust reconsiders the room after a request has finished.
func (s *sloState) adjust(now model.Time, v *View) {
	missing, ready, spared := false, true, true
	for _, service := range v.Services {
		m, target := s.services[service.PID], service.Target
		h := &m.recent
		if s.room <= roomProtected && h.samples >= enough {
			m.base = h.value(target.P())
			if s.room == roomClosed {
				m.minimum = m.base
			}
		}
		fails := h.missed() > service.allowed()
		// One miss among few requests is no evidence about a percentile and would
		// cost the lows half a minute. Two suffice to leave a step on trial.
		missing = missing || fails && h.misses >= 2 && (h.samples >= enough || s.room > roomProtected)
		ready = ready && (h.samples >= 2*enough || service.Busy == 0 && h.samples == 0)
		spared = spared && !fails && float64(h.value(target.P())) <= margin*float64(target.Latency)
	}
	switch {
	case missing && s.room > roomProtected:
		s.backOff(now)
		s.enter(now, roomProtected)
	case missing && s.room == roomProtected && now >= s.retry[roomClosed] && v.CanSuspend:
		s.backOff(now) // stay closed for a while
		s.enter(now, roomClosed)
	case missing && s.room == roomClosed:
		s.futile = true
		s.wait[roomClosed] = max(s.wait[roomClosed], firstRetry)
		s.retry[roomClosed] = now.Add(s.wait[roomClosed])
		s.wait[roomClosed] = min(2*s.wait[roomClosed], lastRetry)
		s.enter(now, roomProtected)
	case missing || !ready:
	case s.room == roomClosed:
		s.futile = false
		if now >= s.retry[roomProtected] {
			s.enter(now, roomProtected)
		}
	case s.room < rooms-1 && spared:
		s.futile = false
		if next := s.room + 1; now >= s.retry[next] && s.affords(v, next) {
			s.enter(now, next)
		}
	}
}

// backOff keeps the current room from being tried again for a while.
func (s *sloState) backOff(now model.Time) {
	s.wait[s.room] = min(max(2*s.wait[s.room], firstRetry), lastRetry)
	s.retry[s.room] = now.Add(s.wait[s.room])
}

// affords reports that by estimate every service meets its target in a room.
func (s *sloState) affords(v *View, r room) bool {
	slice, low := r.slices(&v.Knobs)
	if !v.slicesShare() {
		slice, low = v.Knobs.NativeSlice, v.Knobs.NativeSlice // the driver's own
	}
	for _, service := range v.Services {
		base := s.services[service.PID].base
		turns := base/slice + 1 // each after one of the low's
		if base == 0 || float64(base+turns*(low+2*switchCost)) > margin*float64(service.Target.Latency) {
			return false
		}
	}
	return true
}

// enter begins a step and discards the measurements of the previous one.
func (s *sloState) enter(now model.Time, r room) {
	s.room, s.since = r, now
	for _, m := range s.services {
		m.recent.reset()
	}
}
