// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync"
	"time"

	"xsched/internal/model"
)

// LeasePage publishes one lease to the client.
type LeasePage interface {
	WriteLease(epoch uint64, deadline model.Time)
	WriteLeaseDeadline(deadline model.Time)
	RecoveredEpoch() uint64
}

// Lease bounds suspensions of one process. The daemon publishes epoch and deadline before it
// suspends hardware. The engine loop extends the deadline while the daemon is alive. A client that
// sees the deadline pass undoes the suspension and reports it in recovered_epoch.
//
// Each device has its own lease, with one Hold. The devices without one share a lease: all devices
// of a client that speaks wire version 4, and those beyond wire.MaxLeases.
type Lease struct {
	page  LeasePage
	limit time.Duration

	mu        sync.Mutex
	epoch     uint64
	recovered uint64     // recovered_epoch as of the last look
	deadline  model.Time // 0: nothing suspended
	all       []*Hold
	holds     map[*Hold]struct{} // in effect
}

// NewLease returns a lease with nothing suspended.
func NewLease(page LeasePage, limit time.Duration) *Lease {
	return &Lease{page: page, limit: limit, holds: map[*Hold]struct{}{}}
}

// Hold is one device's part of a lease.
type Hold struct {
	lease  *Lease
	epoch  uint64 // 0: not held
	void   bool   // the deadline passed, or the client recovered
	ending bool   // a resume is due: do not extend
	undone bool   // the client recovered since the last look of Changed
}

// Hold returns a new, inactive hold.
func (l *Lease) Hold() *Hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &Hold{lease: l}
	l.all = append(l.all, h)
	return h
}

// Begin must precede a suspend operation. It returns false if there can be no suspension now: a
// resume is due, or the end of another hold of a shared lease is overdue.
func (h *Hold) Begin(now model.Time) bool {
	l := h.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(now)
	if h.ending || h.epoch != 0 && h.void {
		return false
	}
	// The client resumes a void or ending hold at the deadline, so the deadline must stay.
	frozen := false
	for other := range l.holds {
		frozen = frozen || other.void || other.ending
	}
	if frozen && now > l.deadline {
		return false
	}
	if !frozen {
		l.deadline = now.Add(l.limit)
	}
	l.epoch++
	h.epoch, h.void = l.epoch, false
	l.holds[h] = struct{}{}
	l.page.WriteLease(l.epoch, l.deadline)
	return true
}

// Valid reports whether a suspension still counts; false means the client may have undone it. The
// worker asks after each suspend operation and on every tick.
func (h *Hold) Valid(now model.Time) bool {
	l := h.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(now)
	return h.epoch != 0 && !h.void
}

// Ending freezes the deadline because a resume is due. If the resume hangs, the client recovers.
func (h *Hold) Ending() {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	h.ending = true
}

// Recall makes the client restore its process, because this daemon can't. The deadline is frozen, or
// begins to run if nothing is suspended: timeslices need no lease.
func (h *Hold) Recall(now model.Time) {
	l := h.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(now)
	h.ending = true
	if h.epoch != 0 {
		return
	}
	if len(l.holds) == 0 {
		l.deadline = now.Add(l.limit)
	}
	l.epoch++
	h.epoch, h.void = l.epoch, false
	l.holds[h] = struct{}{}
	l.page.WriteLease(l.epoch, l.deadline)
}

// Wanted reverts Ending when the suspension is wanted again before the resume.
func (h *Hold) Wanted() {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	h.ending = false
}

// End must follow the resume operation.
func (h *Hold) End() {
	l := h.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.epoch == 0 {
		return
	}
	h.epoch, h.void = 0, false
	delete(l.holds, h)
	if len(l.holds) == 0 {
		l.deadline = 0
		l.page.WriteLeaseDeadline(0)
	}
}

// Held reports whether a suspension is, or may be, in effect.
func (h *Hold) Held() bool {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	return h.epoch != 0
}

// Changed reports whether the hold is void, and whether the client recovered since the last call.
func (h *Hold) Changed() (void, undone bool) {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	undone, h.undone = h.undone, false
	return h.epoch != 0 && h.void, undone
}

// Tick extends a live lease and reports whether Changed has news about one of its holds. Only the
// engine loop calls it.
func (l *Lease) Tick(now model.Time) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(now)
	for _, h := range l.all {
		changed = changed || h.undone
	}
	if len(l.holds) == 0 {
		return changed
	}
	alive := true
	for h := range l.holds {
		changed = changed || h.void
		alive = alive && !h.void && !h.ending
	}
	// One ending hold freezes the deadline of a shared lease. The client then undoes every
	// suspension, and the other workers start over.
	if alive {
		l.deadline = now.Add(l.limit)
		l.page.WriteLeaseDeadline(l.deadline)
	}
	return changed
}

// expire voids holds that are past the deadline or that the client undid. An expired deadline is
// never extended, because the client may be recovering right now.
func (l *Lease) expire(now model.Time) {
	recovered := l.page.RecoveredEpoch()
	if recovered != l.recovered {
		l.recovered = recovered
		for _, h := range l.all {
			h.undone = true
		}
	}
	late := l.deadline != 0 && now > l.deadline
	for h := range l.holds {
		if late || recovered >= h.epoch {
			h.void = true
		}
	}
}

// Leases are the leases of one process.
type Leases struct {
	shared *Lease
	own    int // devices with a lease of their own
	device func(index int, gpu model.DeviceID) LeasePage

	mu    sync.Mutex
	index map[model.DeviceID]int // into list
	list  []*Lease
}

// NewLeases returns the leases of a process. The first own devices get a lease each, published by
// device; all others share one.
func NewLeases(shared LeasePage, limit time.Duration, own int, device func(index int, gpu model.DeviceID) LeasePage) *Leases {
	return &Leases{shared: NewLease(shared, limit), own: own, device: device, index: map[model.DeviceID]int{}}
}

// Of returns the lease that covers a device.
func (l *Leases) Of(gpu model.DeviceID) *Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, ok := l.index[gpu]
	if !ok && len(l.list) < l.own {
		i = len(l.list)
		l.index[gpu] = i
		l.list = append(l.list, NewLease(l.device(i, gpu), l.shared.limit))
	} else if !ok {
		return l.shared
	}
	return l.list[i]
}

// Number returns 1 + the index of a device's lease in the page; 0: the shared lease.
func (l *Leases) Number(gpu model.DeviceID) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i, ok := l.index[gpu]; ok {
		return uint32(i) + 1
	}
	return 0
}

// Tick ticks every lease; true: Worker.LeaseChanged has news for a worker.
func (l *Leases) Tick(now model.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := l.shared.Tick(now)
	for _, lease := range l.list {
		changed = lease.Tick(now) || changed
	}
	return changed
}
