// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync"
	"time"

	"xsched/internal/model"
)

// LeasePage is where a suspension is written down for the client to see.
type LeasePage interface {
	WriteLease(epoch uint64, deadline model.Time)
	WriteLeaseDeadline(deadline model.Time)
	RecoveredEpoch() uint64
}

// Lease is the promise that one process's suspensions end by themselves. Its
// epoch and deadline are in the page before the hardware is asked to stop
// anything; the engine loop moves the deadline while it is alive; a client
// that sees it pass undoes the suspension and says so by recovered_epoch.
//
// A process on several devices has one page and so one lease, with one Hold a device.
type Lease struct {
	page  LeasePage
	limit time.Duration

	mu       sync.Mutex
	epoch    uint64
	deadline model.Time // 0: nothing suspended
	holds    map[*Hold]struct{}
}

// NewLease starts with nothing suspended.
func NewLease(page LeasePage, limit time.Duration) *Lease {
	return &Lease{page: page, limit: limit, holds: map[*Hold]struct{}{}}
}

// Hold is one device's part of a lease.
type Hold struct {
	lease  *Lease
	epoch  uint64 // 0: not held
	void   bool   // the deadline passed, or the client recovered
	ending bool   // it is being, or should be, resumed: no more time for it
}

// Hold makes a new, inactive hold.
func (l *Lease) Hold() *Hold { return &Hold{lease: l} }

// Begin is called before a suspend operation.
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

// Valid is asked after a suspend operation and on every tick: false means
// that the client may have undone it, so it counts for nothing.
func (h *Hold) Valid(now model.Time) bool {
	l := h.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(now)
	return h.epoch != 0 && !h.void
}

// Ending stops the deadline from moving because a resume is due: should it
// never happen, the client does it by itself.
func (h *Hold) Ending() {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	h.ending = true
}

// Wanted takes Ending back: the suspension is wanted again before it was resumed.
func (h *Hold) Wanted() {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	h.ending = false
}

// End is called after the hardware runs again.
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

// Held says that a suspension is, or may be, in force.
func (h *Hold) Held() bool {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	return h.epoch != 0
}

// Tick is the engine loop's: it gives a living lease more time and says
// whether a hold has become void, so that its worker must undo it.
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
	// One hold that must end keeps the whole page's deadline still: the
	// client then frees all of it, and the others start over.
	if alive {
		l.deadline = now.Add(l.limit)
		l.page.WriteLeaseDeadline(l.deadline)
	}
	return void
}

// expire marks the holds that no longer count. A deadline that has passed is
// never moved back to life: the client may be recovering this very moment.
func (l *Lease) expire(now model.Time) {
	recovered := l.page.RecoveredEpoch()
	late := l.deadline != 0 && now > l.deadline
	for h := range l.holds {
		if late || recovered >= h.epoch {
			h.void = true
		}
	}
}
