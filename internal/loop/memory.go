// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"xsched/internal/clock"
	"xsched/internal/model"
	"xsched/internal/residency"
	"xsched/internal/wire"
)

// This file brings the memory of programs from their pages to package residency, and its orders back. While the
// memory of a process is not on its devices, or is about to leave or return, the process takes no part in
// scheduling decisions and nothing suspends it: its threads may hold locks of the driver that the move needs,
// and its calls wait in the library.
const (
	// moversPerUser bounds the programs of one account whose memory is scheduled, and with it the time that
	// pages full of invented memory cost the loop: 60 us per heartbeat.
	moversPerUser = 64
	// memoryPause is the least time between two decisions about a device that doorbells cause.
	memoryPause = 2 * time.Millisecond
	// heldMost is for how long an order that waits is looked at between heartbeats. A resume takes a millisecond.
	heldMost = 100 * time.Millisecond
	// sizePause is the time between two questions for the size of a device, which its driver learns from the first
	// program that uses it.
	sizePause = time.Second
	// movesKept bounds the moves that wait for the journal.
	movesKept = 256
)

// ErrManyMovers reports that a process is beyond moversPerUser.
var ErrManyMovers = errors.New("too many programs of this user have movable memory")

// MemoryMove is a move of a program's memory that has ended.
type MemoryMove struct {
	residency.Move
	Who    Identity
	For    Identity // the program that needed the room; PID 0: none
	Device model.DeviceID
	At     model.Time
}

// MemoryView is the memory of a client on a device.
type MemoryView struct {
	wire.DeviceMemory
	Evicted bool // by hand
	// Failed: it should have left by hand, and did not because of Why.
	Failed bool
	Why    residency.Result
	// Ordered is the order in progress.
	Ordered residency.Want
}

// clientMemory is the part memory's state of a client.
type clientMemory struct {
	entries  []wire.DeviceMemory                 // as last read
	evicted  map[model.DeviceID]model.Bytes      // shall be out by hand until restored; replaced, never changed
	failed   map[model.DeviceID]residency.Result // why it did not leave
	restored model.Time
	proved   []model.DeviceID // that it uses
	hostMost model.Bytes      // that it may pin, as its control group allows; 0: no limit
	counted  bool             // in account.movers
	moving   bool             // an order is about to be, or being, carried out
	out      bool             // that, or its memory is not on its devices
	worked   uint64
	since    model.Time // without work; 0: it has some
	written  map[model.DeviceID]residency.Order
}

// memoryDevice is a device with programs that have memory.
type memoryDevice struct {
	*residency.Device
	sized   model.Time // when its size was asked for; 0: it is known, asked for, or nobody can tell
	decided model.Time
	changed bool
	held    model.Time // since when an order waits until its program is resumed; 0: none does
	active  bool
	clients []*Client // scratch of decide
}

// memory is the part that schedules memory.
type memory struct {
	registry  *registry
	admission *admission
	thread    *thread
	capacity  func(model.DeviceID) model.Bytes // may be nil

	host    residency.Host
	devices map[model.DeviceID]*memoryDevice
	moves   []MemoryMove
	granted atomic.Int64 // host.Granted, for readers
	scratch []wire.DeviceMemory
}

// read reads the memory of a client from its page.
func (m *memory) read(now model.Time, c *Client) {
	if !c.page.HasMemory() || c.Attached {
		return
	}
	if !c.memory.counted {
		if c.account.movers >= moversPerUser {
			return
		}
		c.account.movers++
		c.memory.counted, c.memory.since = true, now
	}
	if counts := c.page.Counters(); c.requests.Open(now) > 0 {
		c.memory.since = 0
	} else if sum := counts.Launches + counts.Copies + counts.Syncs; sum != c.memory.worked || c.memory.since == 0 {
		c.memory.worked, c.memory.since = sum, now
	}
	m.scratch = c.page.AppendMemory(m.scratch[:0])
	m.scratch = slices.DeleteFunc(m.scratch, func(e wire.DeviceMemory) bool { return !c.usesMemory(e.Device) })
	if slices.Equal(m.scratch, c.memory.entries) {
		return
	}
	for i := range c.memory.entries { // also what it does not state any more
		m.device(c.memory.entries[i].Device).changed = true
	}
	c.memory.entries = append(c.memory.entries[:0], m.scratch...)
	for i := range c.memory.entries {
		m.device(c.memory.entries[i].Device).changed = true
	}
	m.exempt(c)
}

// usesMemory reports whether a client's memory on a GPU counts: the process has opened it, now or before. Its
// contexts may come and go.
func (c *Client) usesMemory(gpu model.DeviceID) bool {
	if slices.Contains(c.memory.proved, gpu) {
		return true
	}
	if c.notOurs(gpu) != "" {
		return false
	}
	if _, ok := c.caps[gpu]; ok && len(c.memory.proved) < wire.MemoryDevices {
		c.memory.proved = append(c.memory.proved, gpu)
	}
	return true
}

// device returns a device.
func (m *memory) device(gpu model.DeviceID) *memoryDevice {
	d := m.devices[gpu]
	if d == nil {
		d = &memoryDevice{Device: residency.NewDevice(0)}
		m.devices[gpu] = d
		if m.capacity != nil {
			m.askSize(clock.Now(), gpu, d)
		}
	}
	return d
}

// askSize asks for the size of a device. The driver may take its time.
func (m *memory) askSize(now model.Time, gpu model.DeviceID, d *memoryDevice) {
	d.sized = 0
	go func() {
		size := m.capacity(gpu)
		_ = m.thread.post(context.Background(), func() {
			if size > 0 {
				d.SetCapacity(size)
				d.changed = true
			} else {
				d.sized = now
			}
		})
	}()
}

// remove forgets a client.
func (m *memory) remove(c *Client) {
	if c.memory.counted {
		c.account.movers--
	}
	for i := range c.memory.entries {
		m.device(c.memory.entries[i].Device).changed = true
	}
}

// exempt keeps a process whose memory is not on its devices out of decisions, and from being suspended.
func (m *memory) exempt(c *Client) {
	moving, out := false, false
	for i := range c.memory.entries {
		d := m.devices[c.memory.entries[i].Device]
		if d == nil {
			continue
		}
		// What nobody has ordered is no reason: a program could have itself left alone. Nor is memory that is away,
		// if the program has work all the same.
		moving = moving || d.Moving(c.ID)
		out = out || moving || d.Displaced(c.ID) && !c.works()
	}
	if moving == c.memory.moving && out == c.memory.out {
		return
	}
	c.memory.moving, c.memory.out = moving, out
	c.touch()
	m.admission.update(c)
	for _, q := range c.queues {
		if q.unproved != "" && q.merge.primary == nil {
			m.admission.dispatch.setUnproved(clock.Now(), c, q)
		}
	}
}

// works reports that a queue of the client has work.
func (c *Client) works() bool {
	for _, q := range c.queues {
		if q.busy {
			return true
		}
	}
	return false
}

// decide brings the orders of all devices up to date. beat: as time passes, too.
func (m *memory) decide(now model.Time, beat bool) {
	if m.admission.dispatch.stopping {
		return // without a daemon, what is away returns by itself
	}
	for gpu, d := range m.devices {
		if beat && d.sized != 0 && now.Sub(d.sized) >= sizePause {
			m.askSize(now, gpu, d)
		}
		if beat && d.active || d.hurries() && (beat || now.Sub(d.decided) >= memoryPause) {
			m.decideDevice(now, gpu, d)
		}
	}
}

// hurries reports that the device needs a decision before the next heartbeat.
func (d *memoryDevice) hurries() bool {
	return d.changed || d.held != 0 && d.decided.Sub(d.held) < heldMost
}

// due returns when the next decision is due, if that is before next.
func (m *memory) due(next model.Time) model.Time {
	if m.admission.dispatch.stopping {
		return next
	}
	for _, d := range m.devices {
		if d.hurries() {
			next = min(next, d.decided.Add(memoryPause))
		}
	}
	return next
}

func (m *memory) decideDevice(now model.Time, gpu model.DeviceID, d *memoryDevice) {
	d.decided, d.changed = now, false
	d.clients = d.clients[:0]
	var programs []residency.Program
	for _, c := range m.registry.clients {
		for i := range c.memory.entries {
			if e := &c.memory.entries[i]; e.Device == gpu {
				d.clients = append(d.clients, c)
				programs = append(programs, c.residency(now, e))
				break // of several entries of one device, the first counts
			}
		}
	}
	d.active = residency.Active(programs)
	orders := d.Decide(now, programs, &m.host)
	m.granted.Store(int64(m.host.Granted))
	held := false
	for i, c := range d.clients {
		m.exempt(c)
		held = m.write(c, gpu, &orders[i]) || held
		if why, failed := d.HandFailed(c.ID); failed {
			c.give(gpu, why)
		}
		if c.memory.restored != 0 && !slices.ContainsFunc(c.memory.entries, func(e wire.DeviceMemory) bool { return e.Away > 0 || e.Residency != wire.Resident }) {
			c.memory.restored = 0
		}
		d.active = d.active || orders[i].Sequence != programs[i].Order
	}
	if !held {
		d.held = 0
	} else if d.held == 0 {
		d.held = now
	}
	for _, move := range d.Moves() {
		if c := m.registry.clients[move.ID]; c != nil && len(m.moves) < movesKept {
			done := MemoryMove{Move: move, Who: c.Identity, Device: gpu, At: now}
			if by := m.registry.clients[move.By]; by != nil {
				done.For = by.Identity
			}
			m.moves = append(m.moves, done)
		}
	}
	if len(d.clients) == 0 {
		delete(m.devices, gpu)
	}
}

// residency describes the memory of a client on a device.
func (c *Client) residency(now model.Time, e *wire.DeviceMemory) residency.Program {
	p := residency.Program{
		ID: c.ID, Priority: c.hints.Hint.Priority, Movable: c.hints.Hint.Movable,
		Used: e.Used, MovableBytes: e.Movable, AwayBytes: e.Away, Pinned: e.Pinned, Phase: residency.Phase(e.Residency), Result: residency.Result(e.Result),
		Order: e.Order, Moved: e.Moved, Wanted: e.Wanted, WantedAt: e.Request, Waits: slices.ContainsFunc(c.memory.entries, func(e wire.DeviceMemory) bool { return e.Waits }), Room: e.Room,
		RoomUnspecified: e.Room == 0 && e.Request == 0 && e.Out == 0, Restored: c.memory.restored, HostMost: c.memory.hostMost,
	}
	if c.memory.since != 0 {
		p.Idle = now.Sub(c.memory.since)
	}
	p.Evicted = c.memory.evicted[e.Device]
	return p
}

// give ends an order by hand that failed, and keeps the reason for readers.
func (c *Client) give(gpu model.DeviceID, why residency.Result) {
	evicted, failed := maps.Clone(c.memory.evicted), maps.Clone(c.memory.failed)
	delete(evicted, gpu)
	if failed == nil {
		failed = map[model.DeviceID]residency.Result{}
	}
	failed[gpu] = why
	c.memory.evicted, c.memory.failed = evicted, failed
}

// write writes an order into a page. A program is first resumed, so that what it has submitted can end: held
// reports that the order waits for that.
func (m *memory) write(c *Client, gpu model.DeviceID, o *residency.Order) (held bool) {
	last := c.memory.written[gpu]
	if last == *o {
		return false
	}
	next := *o
	if o.Sequence != last.Sequence && o.Want != residency.WantNothing && c.suspended() {
		held = true
		next.Sequence, next.Want, next.Bytes = last.Sequence, last.Want, last.Bytes // the rest of it does not wait
	}
	if c.memory.written == nil {
		c.memory.written = map[model.DeviceID]residency.Order{}
	}
	c.memory.written[gpu] = next
	for i := range c.memory.entries {
		if e := &c.memory.entries[i]; e.Device == gpu {
			c.page.SetMemoryDemand(e, &wire.MemoryDemand{
				Sequence: next.Sequence, Want: uint32(next.Want), Bytes: next.Bytes, Host: next.Host, Verdict: uint32(next.Verdict), Answered: next.Answered,
			})
			return held
		}
	}
	return held
}

// suspended reports that a hardware queue of the client is not resumed yet.
func (c *Client) suspended() bool {
	for _, w := range c.session.Workers() {
		if w.Stats().Suspended {
			return true
		}
	}
	return false
}

// views describes the memory of a client for readers.
func (m *memory) views(c *Client) []MemoryView {
	var out []MemoryView
	for _, e := range c.page.Memory() {
		v := MemoryView{DeviceMemory: e, Evicted: c.memory.evicted[e.Device] > 0}
		v.Why, v.Failed = c.memory.failed[e.Device]
		if d := m.devices[e.Device]; d != nil {
			v.Ordered = d.Pending(c.ID)
		}
		out = append(out, v)
	}
	return out
}

// Evict orders memory of a process out until it is restored: bytes of each GPU, residency.All for
// everything; gpu 0 for all GPUs.
func (l *Loop) Evict(ctx context.Context, pid int, gpu model.DeviceID, bytes model.Bytes) error {
	return l.edit(ctx, pid, func(c *Client) error {
		if l.memory.read(clock.Now(), c); c.page.HasMemory() && !c.memory.counted {
			return ErrManyMovers
		}
		evicted := maps.Clone(c.memory.evicted)
		if evicted == nil {
			evicted = map[model.DeviceID]model.Bytes{}
		}
		for _, e := range c.page.Memory() { // also on a GPU that the driver has not confirmed yet
			if gpu == 0 || gpu == e.Device {
				evicted[e.Device] = bytes
			}
		}
		c.memory.evicted, c.memory.failed, c.memory.restored = evicted, nil, 0
		l.memory.again(c, func(d *memoryDevice) { d.RetryByHand(c.ID) })
		return nil
	})
}

// Restore ends what Evict has ordered, and brings the memory back.
func (l *Loop) Restore(ctx context.Context, pid int) error {
	return l.edit(ctx, pid, func(c *Client) error {
		c.memory.evicted, c.memory.failed, c.memory.restored = nil, nil, clock.Now()
		l.memory.again(c, func(*memoryDevice) {})
		return nil
	})
}

// again decides about a client's devices at the next opportunity.
func (m *memory) again(c *Client, each func(*memoryDevice)) {
	for i := range c.memory.entries {
		d := m.device(c.memory.entries[i].Device)
		each(d)
		d.changed, d.decided = true, 0
	}
}

// MemoryMoves returns the moves that have ended since the last call.
func (l *Loop) MemoryMoves(ctx context.Context) (moves []MemoryMove, err error) {
	err = l.call(ctx, func() { moves, l.memory.moves = l.memory.moves, nil })
	return moves, err
}

// SetHostLimits sets what the control groups of clients allow them to pin; those without an entry have no limit.
func (l *Loop) SetHostLimits(ctx context.Context, limits map[model.SessionID]model.Bytes) error {
	return l.call(ctx, func() {
		for id, c := range l.registry.clients {
			if c.memory.hostMost != limits[id] {
				c.memory.hostMost = limits[id]
				l.memory.again(c, func(*memoryDevice) {})
			}
		}
	})
}
