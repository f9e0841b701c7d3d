// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"time"

	"xsched/internal/model"
)

// Device owns what is known of one device beyond the reports: orders, turns, and how much room there is.
type Device struct {
	programs map[model.SessionID]*program
	capacity model.Bytes // 0: unknown
	// total is what all programs together can have on the device: the newest report of free room, plus what
	// the programs had then. Contexts, other processes and rounding are thereby left out.
	total   model.Bytes
	known   bool
	slack   model.Bytes // of it, what no allocation gets, as failures show: fragments
	pinning model.Time  // when a program that shall leave was last seen getting host memory ready
	moves   []Move
}

// program is the state of one program.
type program struct {
	now Program // of this decision

	order   Order
	pending bool
	ours    bool       // its memory may be away by an order
	sent    model.Time // when the order was given
	begun   model.Time // of the order
	moved   model.Time // of the last progress of the order

	since    model.Time // resident since then; of one that room was made for, since then
	until    model.Time // its turn, in which its allocations come before waiting equals
	debt     model.Time // until its past moves are paid for
	lastCost time.Duration
	backoff  time.Duration
	failed   model.Time // not moved until then
	handOff  Result     // why the last order by hand failed; Done: it did not
	handBad  bool

	lastRoom  model.Bytes
	lastAsked uint64
	short     model.Bytes // of the request lastAsked, at least
	enough    model.Time  // since when there should be room for its request; 0: there is not
	settled   model.Time  // not returned before, unless its calls wait: who needed the room is about to take it
	tryAt     model.Time  // next attempt to return into room that nobody has reported
	tryAfter  time.Duration
	target    model.Bytes // of an order out: what is away afterwards
	size      model.Bytes // what it can give to the present requester
	served    bool        // as a requester, in this decision
}

// NewDevice returns a device of a size; 0: unknown.
func NewDevice(capacity model.Bytes) *Device {
	return &Device{programs: map[model.SessionID]*program{}, capacity: capacity}
}

// Moves returns the moves that ended since the last call.
func (d *Device) Moves() []Move {
	out := d.moves
	d.moves = nil
	return out
}

// HandFailed returns why memory that should leave by hand did not.
func (d *Device) HandFailed(id model.SessionID) (why Result, failed bool) {
	if p := d.programs[id]; p != nil {
		return p.handOff, p.handBad
	}
	return Done, false
}

// RetryByHand forgets why memory did not leave by hand: somebody has asked again.
func (d *Device) RetryByHand(id model.SessionID) {
	if p := d.programs[id]; p != nil {
		p.handBad, p.failed, p.backoff = false, 0, 0
	}
}

// Pending returns what the order in progress wants; WantNothing: there is none.
func (d *Device) Pending(id model.SessionID) Want {
	if p := d.programs[id]; p != nil && p.pending {
		return p.order.Want
	}
	return WantNothing
}

// Moving reports that a program moves by an order, or shall: it must not be suspended.
func (d *Device) Moving(id model.SessionID) bool { return d.Pending(id) != WantNothing }

// Displaced reports that a program's memory is not on the device, by orders.
func (d *Device) Displaced(id model.SessionID) bool {
	p := d.programs[id]
	return p != nil && p.ours && p.now.Phase != Resident
}

// SetCapacity sets the size that the driver states; 0: unknown.
func (d *Device) SetCapacity(size model.Bytes) { d.capacity = size }

// Active reports that the programs need decisions as time passes.
func Active(all []Program) bool {
	for i := range all {
		p := &all[i]
		if p.Phase != Resident || p.AwayBytes > 0 || p.Wanted > 0 || p.Evicted > 0 {
			return true
		}
	}
	return false
}

// follow brings the state in step with the reports.
func (d *Device) follow(now model.Time, all []Program, host *Host) {
	seen := make(map[model.SessionID]bool, len(all))
	for i := range all {
		r := &all[i]
		seen[r.ID] = true
		p := d.programs[r.ID]
		if p == nil {
			p = &program{since: now, lastRoom: -1}
			d.programs[r.ID] = p
		}
		was := p.now
		p.now, p.served, p.handBad = *r, false, p.handBad && r.Evicted > 0
		if r.Phase == Resident && r.AwayBytes == 0 && (was.Phase != Resident || was.AwayBytes != 0) {
			p.since, p.until = now, now.Add(turn)
		}
		d.followOrder(now, p, &was)
		p.ours = p.ours && (p.pending || r.Phase != Resident)
	}
	for id, p := range d.programs {
		if !seen[id] {
			host.Granted -= p.order.Host
			delete(d.programs, id)
		}
	}
	d.learnRoom()
}

// followOrder looks whether an order was carried out, and gives up one without progress.
func (d *Device) followOrder(now model.Time, p *program, was *Program) {
	if !p.pending {
		return
	}
	r := &p.now
	if r.Phase != was.Phase || r.Moved != was.Moved || r.Pinned != was.Pinned || r.AwayBytes != was.AwayBytes {
		p.moved = now
	}
	if p.order.Want == WantOut && r.Phase == Resident {
		d.pinning, p.begun = now, now // the arena grows meanwhile: that costs the program nothing
	}
	endless := now.Sub(p.sent) >= p.longest()
	switch {
	case r.Order == p.order.Sequence:
		p.pending = false
		d.ended(now, p, r.Result, false)
	case now.Sub(p.moved) < stall && !endless:
	case p.order.Want == WantBack && d.leaving() && !endless:
		p.moved = now // its room is on the way
	case p.order.Want == WantNothing:
		p.pending = false // it does not obey; what follows will fail, too
	default:
		d.ended(now, p, r.Result, true)
		if endless {
			p.failed = max(p.failed, now.Add(amortize*now.Sub(p.sent)))
		}
		p.send(now, Order{Want: WantNothing})
	}
}

// longest is how long an order may take, whatever progress its program reports. As long as it has one, nothing
// suspends the program.
func (p *program) longest() time.Duration {
	bytes := p.order.Bytes
	if p.order.Want == WantBack {
		bytes = 2 * p.now.MovableBytes // who leaves for it is first
	}
	return 4*stall + 2*time.Duration(float64(bytes)/slowest*float64(time.Second))
}

// ended accounts a move.
func (d *Device) ended(now model.Time, p *program, result Result, stalled bool) {
	if p.order.Want == WantNothing {
		return
	}
	out := p.order.Want == WantOut
	success := !stalled && (out && p.now.AwayBytes > 0 || !out && p.now.Phase == Resident && p.now.AwayBytes == 0)
	begun := p.begun
	if !out {
		begun = max(begun, d.pinning)
	}
	bytes := p.order.Bytes
	took := max(0, now.Sub(begun))
	p.lastCost = min(took, time.Duration(float64(max(bytes, granule))/slowest*float64(time.Second))+2*time.Second)
	if !p.order.ByHand {
		p.debt = max(p.debt, now).Add(amortize * p.lastCost)
	}
	switch {
	case success:
		p.backoff, p.failed = 0, 0
		if p.tryAfter = 0; out {
			p.settled, p.tryAt = now.Add(retryMin), now.Add(retryMin)
		} else {
			d.slack = max(0, min(d.slack, d.unused()))
		}
	case out:
		p.backoff = min(max(retryMin, 2*p.backoff), retryMax)
		p.failed = now.Add(max(p.backoff, amortize*p.lastCost)) // it waited in vain
		if p.order.ByHand {
			p.handBad, p.handOff = true, result
		}
	}
	if success || out {
		d.moves = append(d.moves, Move{ID: p.now.ID, Want: p.order.Want, By: p.order.By, ByHand: p.order.ByHand, Result: result, Failed: !success, Bytes: bytes, Took: took})
	}
}

// send gives an order.
func (p *program) send(now model.Time, o Order) {
	o.Sequence = max(p.order.Sequence+1, uint64(now)) // unique also beyond the life of a daemon
	o.Host, o.Verdict, o.Answered = p.order.Host, p.order.Verdict, p.order.Answered
	p.order, p.pending, p.sent, p.begun, p.moved = o, true, now, now, now
	p.ours = p.ours || o.Want != WantNothing
}

// leaving reports that memory is on its way out.
func (d *Device) leaving() bool {
	for _, p := range d.programs {
		if p.outgoing() > 0 {
			return true
		}
	}
	return false
}

// outgoing is what an order still brings off the device.
func (p *program) outgoing() model.Bytes {
	if !p.pending || p.order.Want != WantOut {
		return 0
	}
	return min(max(0, p.target-p.now.AwayBytes), p.now.resident())
}

// incoming is what an order still brings to the device.
func (p *program) incoming() model.Bytes {
	if p.now.Phase == Returning || p.pending && p.order.Want == WantBack {
		return p.now.AwayBytes
	}
	return 0
}

// learnRoom takes over reports of free room that are new.
func (d *Device) learnRoom() {
	used := d.total - d.unused()
	for _, p := range d.programs {
		r := &p.now
		asked := r.Wanted > 0 && r.WantedAt != p.lastAsked
		if !r.RoomUnspecified && (asked || r.Room != p.lastRoom || r.Phase == Returning && r.Result == NoRoom) {
			d.total, d.known = r.Room+used, true
			if d.capacity > 0 {
				d.total = min(d.total, d.capacity)
			}
			p.lastRoom = r.Room
		}
		if asked {
			// The allocation failed with this room, so something is short, whatever the room is.
			p.lastAsked, p.short, p.enough = r.WantedAt, max(granule, r.Wanted-r.Room), 0
		}
	}
}

// unused is what is free now, as far as that is known.
func (d *Device) unused() (free model.Bytes) {
	free = d.total
	for _, p := range d.programs {
		free -= p.now.resident()
	}
	return free
}

// doubt notes that an allocation failed although there should be surplus more room than it needs.
func (d *Device) doubt(surplus, need model.Bytes) {
	d.slack += max(surplus, 0) + max(granule, need/amortize)
}

// room is what is free, less what returns, plus what leaves.
func (d *Device) room() (free model.Bytes) {
	free = d.total - d.slack
	for _, p := range d.programs {
		free += p.outgoing() - p.now.resident() - p.incoming()
	}
	return free
}
