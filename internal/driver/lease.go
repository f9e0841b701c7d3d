// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync"
	"time"

	"xsched/internal/model"
)

// LeasePage publishes a suspension to the client.
type LeasePage interface {
	WriteLease(epoch uint64, deadline model.Time)
	WriteLeaseDeadline(deadline model.Time)
	RecoveredEpoch() uint64
}

// Lease bounds the suspensions of one process. The daemon publishes epoch and deadline before it
// suspends hardware. The engine loop extends the deadline while the daemon is alive. A client that
// sees the deadline pass undoes the suspension and reports it in recovered_epoch.
//
// A process has one page, hence one lease, with one Hold per device.
type Lease struct {
	page  LeasePage
	limit time.Duration

	mu       sync.Mutex
	epoch    uint64
	deadline model.Time // 0: nothing suspended
	holds    map[*Hold]struct{}
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
}

// Hold returns a new, inactive hold.
func (l *Lease) Hold() *Hold { return &Hold{lease: l} }

// Begin must precede a suspend operation.
func (h *Hold) Begin(now model.Time) {
	l := h.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(now)
	l.epoch++
	h.epoch, h.void, h.ending = l.epoch, false, false
	l.holds[h] = struct{}{}
	l.deadline = now.Add(l.limit)
	l.page.WriteLease(l.epoch, l.deadline)
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
	h.epoch, h.void, h.ending = 0, false, false
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

// Tick extends a live lease and reports whether a hold became void, so its worker must undo it.
// Only the engine loop calls it.
func (l *Lease) Tick(now model.Time) (void bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.holds) == 0 {
		return false
	}
	l.expire(now)
	alive := true
	for h := range l.holds {
		void = void || h.void
		alive = alive && !h.void && !h.ending
	}
	// One ending hold freezes the deadline of the whole page. The client then undoes every
	// suspension, and the other workers start over.
	if alive {
		l.deadline = now.Add(l.limit)
		l.page.WriteLeaseDeadline(l.deadline)
	}
	return void
}

// expire voids holds that are past the deadline or that the client undid. An expired deadline is
// never extended, because the client may be recovering right now.
func (l *Lease) expire(now model.Time) {
	recovered := l.page.RecoveredEpoch()
	late := l.deadline != 0 && now > l.deadline
	for h := range l.holds {
		if late || recovered >= h.epoch {
			h.void = true
		}
	}
}
