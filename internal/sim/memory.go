// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"xsched/internal/model"
	"xsched/internal/residency"
	gpumodel "xsched/internal/virtual/model"
)

// This file models movable memory: what the program's library does with the daemon's orders. The decisions are the
// daemon's own.

const (
	memoryTick = 5 * time.Millisecond
	// drainLimit is how long submitted work may take before its memory stays.
	drainLimit = 2 * time.Second
	// defaultMoveRate is what an H200 moves in one direction, mapping included.
	defaultMoveRate = 50e9
)

// memory is that of one device.
type memory struct {
	cell    *cell
	device  *residency.Device
	size    model.Bytes
	rate    int64
	ranks   []*rank // with memory
	ticking bool
}

// holding is the memory of one program on one device.
type holding struct {
	residency.Program
	order residency.Order

	bytes  model.Bytes
	held   []gpumodel.Work // submitted while the memory was away
	begun  model.Time      // of the move
	goal   model.Bytes     // to be away after a move out
	before model.Bytes     // away before a move back
	worked model.Time      // the last submission
	since  model.Time      // since when work waits
	failed bool            // out of memory
	sum    memorySum
}

// memorySum adds up moves.
type memorySum struct {
	out, back uint64
	bytes     model.Bytes // of both
	waited    time.Duration
	failed    uint64 // programs without memory
}

func (s *memorySum) add(o *memorySum) {
	s.out += o.out
	s.back += o.back
	s.bytes += o.bytes
	s.waited += o.waited
	s.failed += o.failed
}

func newMemory(c *cell) *memory {
	size := model.Bytes(c.plan.scenario.GPU.Memory)
	return &memory{cell: c, device: residency.NewDevice(size), size: size, rate: c.plan.scenario.GPU.moveRate()}
}

// take allocates the memory of a program that starts, at once if there is room.
func (m *memory) take(r *rank, bytes model.Bytes, priority model.Priority) {
	now := m.cell.now
	r.memory = &holding{bytes: bytes, worked: now, Program: residency.Program{ID: r.id.Session, Priority: priority, Movable: true, Wanted: bytes, WantedAt: uint64(now)}}
	m.ranks = append(m.ranks, r)
	m.tick()
}

// give frees the memory of a program that ends.
func (m *memory) give(r *rank) {
	for i, other := range m.ranks {
		if other == r {
			m.ranks = append(m.ranks[:i], m.ranks[i+1:]...)
			break
		}
	}
	r.ownMemory.add(&r.memory.sum)
	r.memory = nil
	m.tick()
}

// free is what nobody has.
func (m *memory) free() model.Bytes {
	free := m.size
	for _, r := range m.ranks {
		free -= r.memory.Used - r.memory.AwayBytes
	}
	return free
}

// shut reports that work must wait for memory, and keeps it.
func (r *rank) shut(w gpumodel.Work) bool {
	h := r.memory
	if h == nil || h.Phase == residency.Resident && h.Used > 0 {
		if h != nil {
			h.worked = r.inst.cell.now
		}
		return false
	}
	if len(h.held) == 0 {
		h.since = r.inst.cell.now
	}
	h.held = append(h.held, w)
	if !h.Waits {
		h.Waits = true
		r.inst.cell.memories[r.gpu].tick()
	}
	return true
}

// moved returns the moves of a program up to now.
func (r *rank) moved(now model.Time) *memorySum {
	sum := r.ownMemory
	if h := r.memory; h != nil {
		sum.add(&h.sum)
		if len(h.held) > 0 {
			sum.waited += now.Sub(h.since)
		}
	}
	return &sum
}

// reopen submits what waited.
func (r *rank) reopen() {
	h := r.memory
	work := h.held
	h.held, h.Waits = nil, false
	if len(work) > 0 {
		h.sum.waited += r.inst.cell.now.Sub(h.since)
	}
	for _, w := range work {
		r.push(w)
	}
}

// tick lets memory move, and decides. It repeats itself while that changes something.
func (m *memory) tick() {
	if !m.ticking {
		m.ticking = true
		m.cell.moves.Push(m.cell.now, m)
	}
}

// move is one tick.
func (m *memory) move() {
	m.ticking = false
	for _, r := range m.ranks {
		m.act(r)
	}
	all := make([]residency.Program, len(m.ranks))
	for i, r := range m.ranks {
		h := r.memory
		h.Room, h.Idle = m.free(), 0
		if r.flying == 0 && len(h.held) == 0 {
			h.Idle = m.cell.now.Sub(h.worked)
		}
		all[i] = h.Program
	}
	for i, o := range m.device.Decide(m.cell.now, all, &m.cell.host) {
		m.ranks[i].memory.obey(m.cell.now, o)
	}
	if residency.Active(all) {
		m.ticking = true
		m.cell.moves.Push(m.cell.now.Add(memoryTick), m)
	}
}

// obey takes note of an order.
func (h *holding) obey(now model.Time, o residency.Order) {
	fresh := o.Sequence != h.order.Sequence
	h.order = o
	if h.Wanted > 0 && o.Verdict == residency.VerdictFail && o.Answered == h.WantedAt {
		h.failed, h.Wanted = true, 0
		h.sum.failed++
	}
	if !fresh {
		return
	}
	switch {
	case o.Want == residency.WantOut && h.Phase == residency.Resident:
		h.Phase, h.begun, h.goal = residency.Draining, now, h.AwayBytes+o.Bytes
	case o.Want == residency.WantOut:
		h.Phase, h.goal = residency.Leaving, h.AwayBytes+o.Bytes
	case o.Want == residency.WantBack:
		h.Phase, h.before = residency.Returning, h.AwayBytes
	case h.Phase == residency.Draining:
		h.end(residency.Resident, residency.Done)
	case h.Phase == residency.Returning:
		h.AwayBytes = h.before
		h.end(residency.Away, residency.Done)
	default:
		h.end(h.Phase, residency.Done)
	}
	h.goal = min(h.goal, h.MovableBytes)
}

func (h *holding) end(phase residency.Phase, result residency.Result) {
	h.Phase, h.Result, h.Order = phase, result, h.order.Sequence
}

// act continues what a program does about its memory.
func (m *memory) act(r *rank) {
	h := r.memory
	step := model.Bytes(float64(m.rate) * memoryTick.Seconds())
	switch h.Phase {
	case residency.Resident:
		if h.Wanted > 0 && m.free() >= h.Wanted {
			h.Used, h.MovableBytes, h.Wanted = h.bytes, h.bytes, 0
			r.reopen()
		}
	case residency.Draining:
		if r.flying == 0 && len(r.held) == 0 {
			h.Phase = residency.Leaving
		} else if m.cell.now.Sub(h.begun) > drainLimit {
			h.end(residency.Resident, residency.Busy)
			r.reopen()
		}
	case residency.Leaving:
		moved := min(step, h.goal-h.AwayBytes)
		h.AwayBytes += moved
		h.Moved += moved
		h.sum.bytes += moved
		if h.AwayBytes >= h.goal {
			h.sum.out++
			h.end(residency.Away, residency.Done)
		}
	case residency.Returning:
		moved := max(0, min(step, h.AwayBytes, m.free()))
		h.AwayBytes -= moved
		h.Moved += moved
		h.sum.bytes += moved
		h.Result = residency.Done
		if h.AwayBytes == 0 {
			h.sum.back++
			h.end(residency.Resident, residency.Done)
			r.reopen()
		} else if moved == 0 {
			h.Result = residency.NoRoom
		}
	case residency.Away:
	}
}
