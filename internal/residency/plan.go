// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"cmp"
	"slices"

	"xsched/internal/model"
)

// Host is the host memory that moves may use, on all devices together.
type Host struct {
	Budget model.Bytes
	// Granted is what the programs may have. They never get back less than they may use already.
	Granted model.Bytes
}

// Decide returns the order of each program, in their order. An order with a new sequence replaces the last one;
// Host, Verdict and Answered change without.
func (d *Device) Decide(now model.Time, all []Program, host *Host) []Order {
	d.follow(now, all, host)
	d.withdraw(now)
	d.byHand(now, host)
	free := d.room()
	for _, p := range d.requesters(now) {
		p.served = true
		free = d.serve(now, p, free, host)
	}
	d.returnIdle(now, free)
	d.pinAhead(host)
	out := make([]Order, len(all))
	for i := range all {
		out[i] = d.programs[all[i].ID].order
	}
	return out
}

// withdraw ends orders that are not worth carrying out any more.
func (d *Device) withdraw(now model.Time) {
	for _, p := range d.programs {
		if !p.pending {
			continue
		}
		switch o := &p.order; {
		case o.Want == WantOut && p.now.Phase == Resident:
			if o.ByHand && p.now.Evicted == 0 || !o.ByHand && d.programs[o.By] == nil {
				p.send(now, Order{Want: WantNothing})
			}
		case o.Want == WantBack && p.now.Result == NoRoom && now.Sub(p.moved) >= retryMin && !d.leaving():
			// What it got of the room may be what another one needs.
			if free := d.room(); free >= 0 {
				d.doubt(free, p.now.AwayBytes)
			}
			p.send(now, Order{Want: WantNothing})
			p.settled = now.Add(retryMin)
		}
	}
}

// byHand orders out what operators want out.
func (d *Device) byHand(now model.Time, host *Host) {
	for _, p := range d.sorted(func(p *program) bool { return p.now.Evicted > 0 }) {
		short := min(p.now.Evicted, p.now.MovableBytes) - p.now.AwayBytes
		switch {
		case p.pending && p.order.Want == WantBack:
			p.send(now, Order{Want: WantNothing})
		case p.pending || p.handBad || short <= 0:
		case !p.grant(p.now.AwayBytes+short, host):
			p.handBad, p.handOff = true, HostFull
			d.moves = append(d.moves, Move{ID: p.now.ID, Want: WantOut, ByHand: true, Result: HostFull, Failed: true, Bytes: short})
		default:
			p.leave(now, short, Order{ByHand: true})
		}
	}
}

// requesters returns the programs that need room, the first one first.
func (d *Device) requesters(now model.Time) []*program {
	all := d.sorted(func(p *program) bool {
		return p.now.Wanted > 0 || p.now.AwayBytes > 0 && p.now.Evicted == 0 && (p.now.Waits || p.now.Restored > 0)
	})
	// A program allocates in many steps. Had each to wait behind those whose room it got, it would fill no turn.
	waits := func(p *program) int {
		if p.now.AwayBytes == 0 && now < p.until {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b *program) int {
		return cmp.Or(cmp.Compare(b.now.Priority, a.now.Priority), waits(a)-waits(b))
	})
	return all
}

// sorted returns the programs that a function selects: by priority, then the one that has had its memory away for
// longest, then the oldest.
func (d *Device) sorted(selects func(*program) bool) []*program {
	var out []*program
	for _, p := range d.programs {
		if selects(p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *program) int {
		return cmp.Or(cmp.Compare(b.now.Priority, a.now.Priority), cmp.Compare(a.since, b.since), cmp.Compare(a.now.ID, b.now.ID))
	})
	return out
}

// serve makes room for a requester, and returns what is left of the free room for those after it.
func (d *Device) serve(now model.Time, p *program, free model.Bytes, host *Host) model.Bytes {
	if p.now.AwayBytes > 0 { // also where an allocation waits: its program waits for all of its memory
		return d.serveReturn(now, p, free, host)
	}
	short := max(p.now.Wanted-free, p.short)
	if short <= 0 {
		if p.enough == 0 || d.leaving() {
			p.enough = now
		}
		if now.Sub(p.enough) >= retryMin {
			d.doubt(free-p.now.Wanted, p.now.Wanted)
			p.enough = now
		}
		p.answer(VerdictWait)
		return free - p.now.Wanted
	}
	p.enough = 0
	switch victims := d.victims(now, p, short, host); {
	case victims != nil:
		d.evict(now, p, victims, short, host)
		if p.short = 0; now >= p.until && now >= p.turnEnds() || p.until == 0 {
			p.since, p.until = now, now.Add(turn)
		}
	case !d.later(now, p, max(p.now.Wanted, min(short, p.short)+d.unused()-d.slack), host):
		p.answer(VerdictFail)
		return free
	}
	p.answer(VerdictWait)
	return free - p.now.Wanted
}

// serveReturn brings back the memory of a program whose calls wait.
func (d *Device) serveReturn(now model.Time, p *program, free model.Bytes, host *Host) model.Bytes {
	if p.pending || p.now.Phase != Away {
		return free // under way, and part of the estimate
	}
	if short := p.now.AwayBytes - free; d.known && short > 0 {
		victims := d.victims(now, p, short, host)
		switch {
		case victims != nil:
			d.evict(now, p, victims, short, host)
		case d.later(now, p, p.now.AwayBytes, host):
			return free - p.now.AwayBytes
		case now < p.tryAt:
			return free // nobody can leave: whoever fits in may have what is free
		default:
			p.probe(now)
		}
	} else if now < p.tryAt && !d.known {
		return free
	}
	p.send(now, Order{Want: WantBack, Bytes: p.now.AwayBytes})
	return free - p.now.AwayBytes
}

// answer gives the verdict about a request.
func (p *program) answer(v Verdict) { p.order.Verdict, p.order.Answered = v, p.now.WantedAt }

// victims returns who shall leave for a requester. Nil: too little can leave now.
func (d *Device) victims(now model.Time, r *program, short model.Bytes, host *Host) (chosen []*program) {
	var can []*program
	for _, p := range d.programs {
		at, ever := p.leavesFor(r)
		p.size = min(p.canLeave(), arenaFits(p.order.Host+p.more(host.Budget-host.Granted))-p.now.AwayBytes)
		if p != r && p.size >= granule && ever && at <= now {
			can = append(can, p)
		}
	}
	slices.SortFunc(can, func(a, b *program) int { return a.before(b, now, short) })
	var sum model.Bytes
	left := host.Budget - host.Granted
	for _, p := range can {
		if sum >= short {
			break
		}
		p.size = min(p.size, arenaFits(p.order.Host+p.more(left))-p.now.AwayBytes)
		if p.size < granule {
			continue
		}
		left -= max(0, arena(p.now.AwayBytes+min(p.size, short-sum))-p.order.Host)
		chosen = append(chosen, p)
		sum += p.size
	}
	if sum < short {
		return nil
	}
	for i := 0; i < len(chosen); i++ { // those that the later ones made superfluous stay
		if size := chosen[i].size; sum-size >= short {
			sum -= size
			chosen = slices.Delete(chosen, i, i+1)
			i--
		}
	}
	return chosen
}

// later reports that a requester gets the room that it needs when others' turns are over, if all goes well.
func (d *Device) later(now model.Time, r *program, need model.Bytes, host *Host) bool {
	leaves := model.Bytes(0)
	for _, p := range d.programs {
		served := p.served
		p.served = false // who comes first leaves afterwards
		if _, ever := p.leavesFor(r); p != r && ever && p.now.Evicted == 0 && p.failed <= now.Add(patience) {
			leaves += min(p.now.MovableBytes-p.now.AwayBytes, p.now.resident())
		}
		p.served = served
	}
	return d.unused()-d.slack+min(leaves, host.Budget) >= need
}

// before orders victims: lower priority first, then those whose turn is over, then the longest without work, then
// the smallest that suffices.
func (p *program) before(o *program, now model.Time, short model.Bytes) int {
	fresh := func(p *program) int {
		if p.turnEnds() > now {
			return 1
		}
		return 0
	}
	size := func(p *program) model.Bytes {
		if p.size >= short {
			return p.size - All // smallest first, before all that do not suffice
		}
		return -p.size
	}
	return cmp.Or(cmp.Compare(p.now.Priority, o.now.Priority), fresh(p)-fresh(o), cmp.Compare(o.now.Idle/turn, p.now.Idle/turn),
		cmp.Compare(size(p), size(o)), cmp.Compare(p.since, o.since), cmp.Compare(p.now.ID, o.now.ID))
}

// turnEnds is when equals may have the room of a program: its moves are paid for.
func (p *program) turnEnds() model.Time { return max(p.since.Add(turn), p.debt) }

// leavesFor returns from when a program leaves for another one; false: never. Among equals, and more so before a
// higher program, only one that can leave again itself has a turn: otherwise the others would wait for its end.
func (p *program) leavesFor(r *program) (at model.Time, ever bool) {
	switch {
	case p.served:
		return 0, false // it comes first
	case r.now.Priority > p.now.Priority:
		return p.failed, true
	case !r.now.Movable && r.now.MovableBytes == 0:
		return 0, false
	case r.now.Priority < p.now.Priority && p.now.Idle < idleLong:
		return 0, false
	case p.now.AwayBytes > 0: // what it still has on the device is of no use to it
		return p.failed, true
	}
	return max(p.failed, p.turnEnds()), true
}

// canLeave is what can leave, apart from turns and host memory.
func (p *program) canLeave() model.Bytes {
	if p.pending || p.now.Phase != Resident && p.now.Phase != Away || p.now.Evicted > 0 {
		return 0
	}
	return min(p.now.MovableBytes-p.now.AwayBytes, p.now.resident())
}

// evict orders out as many bytes as are short. A program that allocates does so in many steps. What its victim still
// has on the device is of no use to that, so it leaves in growing steps: few moves, and at most twice as much.
func (d *Device) evict(now model.Time, r *program, victims []*program, short model.Bytes, host *Host) {
	for i, p := range victims {
		bytes := p.size
		if i == len(victims)-1 {
			least := max(granule, short)
			if r.now.AwayBytes == 0 {
				least = max(least, p.now.AwayBytes)
			}
			bytes = min(bytes, least)
		}
		p.grant(p.now.AwayBytes+bytes, host)
		p.leave(now, bytes, Order{By: r.now.ID})
		short -= bytes
	}
}

// leave orders bytes of a program out.
func (p *program) leave(now model.Time, bytes model.Bytes, o Order) {
	o.Want, o.Bytes = WantOut, bytes
	p.send(now, o)
	p.target = p.now.AwayBytes + bytes
}

// returnIdle brings back what nobody needs the room of, without waiting for a call.
func (d *Device) returnIdle(now model.Time, free model.Bytes) {
	contended := len(d.requesters(now)) > 0
	for _, p := range d.sorted(func(p *program) bool {
		return p.now.AwayBytes > 0 && p.now.Phase == Away && p.now.Evicted == 0 && !p.pending
	}) {
		// Room that comes and goes, as with a higher program that allocates now and then, is not worth more
		// than one unpaid move.
		unpaid := p.debt > now.Add(amortize*p.lastCost)
		fits := d.known && p.now.AwayBytes <= free
		try := p.settled
		if !fits {
			if try = p.tryAt; d.known {
				try = try.Add(retryMax)
			}
		}
		if p.served || unpaid || now < try || !fits && (d.leaving() || contended) {
			continue
		}
		if !fits {
			p.probe(now)
		}
		p.send(now, Order{Want: WantBack, Bytes: p.now.AwayBytes})
		free -= p.now.AwayBytes
	}
}

// probe notes an attempt to return although there seems to be no room: the estimate may be wrong.
func (p *program) probe(now model.Time) {
	p.tryAfter = min(max(retryMin, 2*p.tryAfter), retryMax)
	p.tryAt = now.Add(p.tryAfter)
}

// arena is the host memory that an amount of device memory needs: whole slabs, and one for the holes.
func arena(bytes model.Bytes) model.Bytes { return (bytes+slab-1)/slab*slab + slab }

// arenaFits is what certainly fits into so much host memory.
func arenaFits(host model.Bytes) model.Bytes { return max(0, host/slab*slab-slab) }

// more is what a program may have of what is left of the budget.
func (p *program) more(left model.Bytes) model.Bytes {
	if p.now.HostMost > 0 {
		left = min(left, p.now.HostMost-p.order.Host)
	}
	return max(0, left)
}

// grant raises what a program may pin, so that bytes of it can be away. It reports whether the budget allows
// that. Blocks are rounded up, so there is an eighth more, where the budget has it.
func (p *program) grant(bytes model.Bytes, host *Host) bool {
	if more := min(arena(bytes+bytes/8)-p.order.Host, p.more(host.Budget-host.Granted)); more > 0 {
		p.order.Host += more
		host.Granted += more
	}
	return p.order.Host >= arena(bytes)
}

// pinAhead grants host memory before it is needed, because pinning is slow: to the programs that leave first, on
// a device that is more than half full. One program gets half of the budget at most ahead: two that take turns both
// need some. What a program does not need any more goes back once it has unpinned it.
func (d *Device) pinAhead(host *Host) {
	var used model.Bytes
	for _, p := range d.programs {
		used += p.now.Used
		need := max(p.now.MovableBytes, p.now.Pinned)
		if need > 0 {
			need = arena(need)
		}
		if p.order.Host > 2*need && !p.pending { // half of it may be needed again soon
			host.Granted -= p.order.Host - need
			p.order.Host = need
		}
	}
	all := d.sorted(func(p *program) bool { return p.now.MovableBytes > 0 })
	slices.Reverse(all)
	full := d.capacity
	if full == 0 {
		full = d.total
	}
	for _, p := range all {
		if full > 0 && used > full/2 {
			p.grant(min(p.now.MovableBytes, host.Budget/2*8/9), host) // grant adds an eighth
		}
	}
}
