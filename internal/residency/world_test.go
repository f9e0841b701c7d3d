// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"math/rand/v2"
	"testing"
	"time"

	"xsched/internal/model"
)

const (
	gib  = model.Bytes(1 << 30)
	step = 5 * time.Millisecond
)

// world is a device with programs whose shims obey.
type world struct {
	t        *testing.T
	device   *Device
	host     Host
	now      model.Time
	size     model.Bytes
	programs []*actor
	random   *rand.Rand
	lies     func() model.Bytes // free room that a shim reports; nil: the truth
	speed    int                // of copies, in GiB per second
	gap      model.Bytes        // free room that no allocation gets
	check    func(w *world, a *actor, was, is Order)
}

// actor is a program and its shim.
type actor struct {
	Program
	order      Order
	busy       bool // waits at once when its memory is away
	wants      model.Bytes
	drain      time.Duration // how long submitted work goes on
	ignores    bool          // obeys no order
	drained    time.Duration
	awayBefore model.Bytes
	goal       model.Bytes
	returned   model.Time
	waitsSince model.Time
	longest    time.Duration // that it waited
	moving     time.Duration
	verdict    Verdict
}

func newWorld(t *testing.T, size model.Bytes) *world {
	return &world{t: t, device: NewDevice(size), host: Host{Budget: 1000 * gib}, now: model.Time(time.Hour), size: size, speed: 50, random: rand.New(rand.NewPCG(1, 2))}
}

// add adds a program with movable memory.
func (w *world) add(priority model.Priority, used model.Bytes) *actor {
	a := &actor{
		Program: Program{ID: model.SessionID(len(w.programs) + 1), Priority: priority, Movable: true, RoomUnspecified: true},
		busy:    true, drain: 50 * time.Millisecond,
	}
	w.programs = append(w.programs, a)
	a.ask(w, used)
	return a
}

// ask allocates, at once if there is room.
func (a *actor) ask(w *world, bytes model.Bytes) {
	if w.free()-w.gap >= bytes {
		a.Used += bytes
		a.MovableBytes += bytes
		return
	}
	a.wants = bytes
	a.Used += bytes // reserved
	a.Wanted, a.WantedAt, a.verdict = bytes, uint64(w.now), VerdictNone
	a.report(w)
}

func (a *actor) report(w *world) {
	a.Room, a.RoomUnspecified = w.free(), false
	if w.lies != nil {
		a.Room = w.lies()
	}
}

func (w *world) free() model.Bytes {
	free := w.size
	for _, a := range w.programs {
		free -= a.resident()
	}
	return free
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now < end; w.now = w.now.Add(step) {
		for _, a := range w.programs {
			a.act(w)
		}
		if w.now%model.Time(20*time.Millisecond) == 0 {
			w.decide()
		}
	}
}

func (w *world) decide() {
	all := make([]Program, len(w.programs))
	for i, a := range w.programs {
		all[i] = a.Program
	}
	for i, o := range w.device.Decide(w.now, all, &w.host) {
		a := w.programs[i]
		if w.check != nil && o.Sequence != a.order.Sequence {
			w.check(w, a, a.order, o)
		}
		if a.order = o; a.Wanted > 0 && o.Answered == a.WantedAt {
			a.verdict = o.Verdict
		}
	}
	var granted model.Bytes
	for _, a := range w.programs {
		granted += a.order.Host
		if a.Pinned > a.order.Host {
			w.t.Fatalf("%v: program %d pinned %v and may %v", w.now, a.ID, a.Pinned, a.order.Host)
		}
	}
	if granted > w.host.Budget {
		w.t.Fatalf("%v: %v of host memory granted of %v", w.now, granted, w.host.Budget)
	}
}

// rate is what moves in one step at a number of GiB per second.
func rate(perSecond int) model.Bytes { return gib * model.Bytes(perSecond) / 200 }

// act is one step of a program's shim.
func (a *actor) act(w *world) {
	if a.wants > 0 && a.Phase == Resident && w.free()-w.gap >= a.wants {
		a.MovableBytes, a.wants, a.Wanted = a.MovableBytes+a.wants, 0, 0
	}
	if a.verdict == VerdictFail && a.wants > 0 {
		a.Used -= a.wants
		a.wants, a.Wanted = 0, 0
	}
	if !a.busy {
		a.Idle += step
	} else {
		a.Idle = 0
	}
	if a.Waits = a.busy && a.AwayBytes > 0; a.Waits && a.waitsSince == 0 {
		a.waitsSince = w.now
	} else if !a.Waits && a.waitsSince != 0 {
		a.waitsSince = 0
	}
	if a.waitsSince != 0 {
		a.longest = max(a.longest, w.now.Sub(a.waitsSince))
	}
	if limit := min(a.order.Host, arena(a.MovableBytes)) / slab * slab; a.Pinned < limit {
		a.Pinned = min(limit, a.Pinned+rate(2))
	} else if a.Pinned > a.order.Host {
		a.Pinned = a.order.Host
	}
	if a.ignores || a.Order == a.order.Sequence {
		return
	}
	switch a.order.Want {
	case WantNothing:
		a.withdrawn()
	case WantOut:
		a.out(w)
	case WantBack:
		a.back(w)
	}
}

func (a *actor) end(r Result) { a.Order, a.Result = a.order.Sequence, r }

func (a *actor) withdrawn() {
	switch a.Phase {
	case Draining:
		a.Phase = Resident
	case Returning:
		a.Phase, a.AwayBytes = Away, a.awayBefore
	case Leaving:
		return // completed first
	}
	a.end(a.Result)
}

func (a *actor) out(w *world) {
	switch a.Phase {
	case Resident, Away:
		a.goal = a.AwayBytes + a.order.Bytes
		switch {
		case a.goal > a.MovableBytes:
			w.t.Fatalf("program %d shall move %v of %v", a.ID, a.goal, a.MovableBytes)
		case a.goal > a.order.Host/slab*slab:
			a.end(HostFull)
			return
		case a.Pinned < a.goal:
			return
		}
		a.drained, a.Moved = 0, 0
		if a.Phase = Draining; a.AwayBytes > 0 {
			a.Phase = Leaving
		}
	case Draining:
		a.moving += step
		if a.drained += step; a.drained >= min(a.drain, 2*time.Second) {
			if a.Phase = Leaving; a.drain > 2*time.Second {
				a.Phase = Resident
				a.end(Busy)
			}
		}
	case Leaving:
		a.moving += step
		n := min(rate(w.speed), a.goal-a.AwayBytes)
		a.AwayBytes, a.Moved = a.AwayBytes+n, a.Moved+n
		if a.AwayBytes == a.goal {
			a.Phase = Away
			a.report(w)
			a.end(Done)
		}
	default:
		w.t.Fatalf("%v: program %d is ordered out while it returns", w.now, a.ID)
	}
}

func (a *actor) back(w *world) {
	if a.Phase == Draining || a.Phase == Leaving {
		w.t.Fatalf("%v: program %d is ordered back while it leaves", w.now, a.ID)
	}
	if a.Phase == Away {
		a.Phase, a.awayBefore, a.Moved = Returning, a.AwayBytes, 0
	}
	n := min(rate(w.speed), a.AwayBytes, w.free()-w.gap)
	if n <= 0 && a.AwayBytes > 0 {
		a.Result = NoRoom
		a.report(w)
		return
	}
	a.Result = Done
	a.moving += step
	a.AwayBytes, a.Moved = a.AwayBytes-n, a.Moved+n
	if a.AwayBytes == 0 {
		a.Phase, a.returned = Resident, w.now
		a.report(w)
		a.end(Done)
	}
}
