// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// pageSeals keep the other side from pulling the memory away under us.
const pageSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Page is a mapped session page. The client may write any byte of it at any
// time: readers here read each value once, by an atomic load, and bound every
// index. Only the daemon's fields are ever written.
//
// A page is mapped until its last holder releases it, because a device worker
// that is stuck in an ioctl may outlive its session.
type Page struct {
	mem  []byte
	refs atomic.Int32
}

// NewPage creates a sealed memory file with the identity of a session in it and
// maps it. The file descriptor is the caller's to hand over and close.
func NewPage(session uint64) (*Page, int, error) {
	fd, err := unix.MemfdCreate("xsched-page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, fmt.Errorf("create page: %w", err)
	}
	p, err := setUpPage(fd, session)
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, err
	}
	return p, fd, nil
}

func setUpPage(fd int, session uint64) (*Page, error) {
	if err := unix.Ftruncate(fd, PageBytes); err != nil {
		return nil, fmt.Errorf("size page: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, pageSeals); err != nil {
		return nil, fmt.Errorf("seal page: %w", err)
	}
	p, err := MapPage(fd)
	if err != nil {
		return nil, err
	}
	store32(p.mem, OffHeaderVersion, Version)
	store32(p.mem, OffHeaderPageBytes, PageBytes)
	store32(p.mem, OffHeaderMaxQueues, MaxQueues)
	store64(p.mem, OffHeaderSessionID, session)
	store64(p.mem, OffHeaderHeartbeatLimitNS, HeartbeatLimitNS)
	store32(p.mem, OffHeaderMagic, PageMagic)
	return p, nil
}

// MapPage maps a page that somebody else made, after checking that it can't shrink.
func MapPage(fd int) (*Page, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat page: %w", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("read seals of page: %w", err)
	}
	if st.Size != PageBytes || seals&pageSeals != pageSeals {
		return nil, fmt.Errorf("map page: %d bytes with seals %#x, want %d with %#x", st.Size, seals, PageBytes, pageSeals)
	}
	mem, err := unix.Mmap(fd, 0, PageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map page: %w", err)
	}
	p := &Page{mem: mem}
	p.refs.Store(1)
	return p, nil
}

// Retain adds a holder. Preconditions: the caller knows of another holder.
func (p *Page) Retain() *Page {
	p.refs.Add(1)
	return p
}

// Release takes a holder away and unmaps the page with the last one.
func (p *Page) Release() {
	if p.refs.Add(-1) == 0 {
		mem := p.mem
		p.mem = nil
		_ = unix.Munmap(mem)
	}
}

// Heartbeat says that the engine is alive.
func (p *Page) Heartbeat(now model.Time) { store64(p.mem, OffHeaderHeartbeatNS, uint64(now)) }

// WriteLease names a new suspension and its end. The deadline goes first: a
// client that sees the new epoch then also sees a deadline that belongs to it.
func (p *Page) WriteLease(epoch uint64, deadline model.Time) {
	store64(p.mem, OffHeaderLeaseDeadlineNS, uint64(deadline))
	store64(p.mem, OffHeaderLeaseEpoch, epoch)
}

// WriteLeaseDeadline moves the end of the newest lease; 0: nothing is suspended.
func (p *Page) WriteLeaseDeadline(deadline model.Time) {
	store64(p.mem, OffHeaderLeaseDeadlineNS, uint64(deadline))
}

// RecoveredEpoch is the newest lease the client says it has undone.
func (p *Page) RecoveredEpoch() uint64 { return load64(p.mem, OffHeaderRecoveredEpoch) }

// Recoveries is how often the client says it had to.
func (p *Page) Recoveries() uint64 { return load64(p.mem, OffHeaderRecoveries) }

// QueueCount is how many slots were ever used, never more than there are.
func (p *Page) QueueCount() int { return int(min(load64(p.mem, OffHeaderQueueCount), MaxQueues)) }

// QueueView is one reading of a slot's client half.
type QueueView struct {
	Transitions uint64
	ChangedNS   uint64
	Generation  uint64
	Device      model.DeviceID
	Priority    int32
	Stream      bool // one stream, not all of a context's
	Submitted   uint64
	BusyNS      int64  // as in the page: Worked reads it
	FedNS       uint64 // as in the page: Fed reads it
}

// InUse says that the slot holds a queue now.
func (q *QueueView) InUse() bool { return q.Generation&1 == 1 }

// Busy says that the queue has work.
func (q *QueueView) Busy() bool { return q.Transitions&1 == 1 }

// Worked is for how long the queue had work up to now, as its client says.
func (q *QueueView) Worked(now model.Time) time.Duration {
	if q.BusyNS < 0 {
		return time.Duration(q.BusyNS + int64(now))
	}
	return time.Duration(q.BusyNS)
}

// Fed is for how long the program of a queue that is idle now had been submitting, in a busy time that began
// at a time, before it waited for the rest; 0: that is not known.
func (q *QueueView) Fed(began uint64) time.Duration {
	if q.Busy() || q.FedNS < began || q.FedNS > q.ChangedNS {
		return 0
	}
	return max(1, time.Duration((q.FedNS-began)&(1<<63-1)))
}

func slot(i int) (int, bool) {
	if i < 0 || i >= MaxQueues {
		return 0, false
	}
	return HeaderBytes + i*QueueBytes, true
}

// Queue reads slot i; a slot out of range reads as never used. The generation
// comes first: the client publishes it after what it describes.
func (p *Page) Queue(i int) QueueView {
	at, ok := slot(i)
	if !ok {
		return QueueView{}
	}
	q := QueueView{Generation: load64(p.mem, at+OffQueueGeneration)}
	if q.Generation == 0 {
		return q
	}
	domain := load32(p.mem, at+OffQueuePCIDomain)
	busSlot := load32(p.mem, at+OffQueuePCIBusSlot)
	q.Device = model.MakeDeviceID(domain, busSlot>>8, busSlot>>3, busSlot)
	q.Priority = int32(load32(p.mem, at+OffQueuePriority))
	q.Stream = load32(p.mem, at+OffQueueKind) == QueueStream
	q.Submitted = load64(p.mem, at+OffQueueSubmitted)
	// Transitions before the time of the change: the client writes them the
	// other way round, so the time read is that of this change or of a later one.
	q.Transitions = load64(p.mem, at+OffQueueTransitions)
	q.ChangedNS = load64(p.mem, at+OffQueueChangedNS)
	q.BusyNS = int64(load64(p.mem, at+OffQueueBusyNS))
	q.FedNS = load64(p.mem, at+OffQueueFedNS)
	return q
}

// Hush has the client of slot i not ring when its queue changes.
func (p *Page) Hush(i int) {
	if at, ok := slot(i); ok {
		store32(p.mem, at+OffQueueQuiet, 1)
	}
}

// Listen has it ring again, and reads the slot after that: a change that the client did not ring
// for is one that is seen here.
func (p *Page) Listen(i int) QueueView {
	if at, ok := slot(i); ok {
		store32(p.mem, at+OffQueueQuiet, 0)
	}
	return p.Queue(i)
}

// SetGate opens or closes the gate of slot i and wakes launchers when it opens.
func (p *Page) SetGate(i int, held bool) {
	at, ok := slot(i)
	if !ok {
		return
	}
	if held {
		store32(p.mem, at+OffQueueGate, GateHeld)
		return
	}
	store32(p.mem, at+OffQueueGate, GateOpen)
	futexWake(p.mem, at+OffQueueGate)
}

// SetLimits writes the Lv1 limits of slot i; 0: none.
func (p *Page) SetLimits(i int, inFlight, batch uint32) {
	at, ok := slot(i)
	if !ok {
		return
	}
	store32(p.mem, at+OffQueueInFlight, inFlight)
	store32(p.mem, at+OffQueueBatch, batch)
}

// Counters are the client's own figures.
type Counters struct {
	HookedCalls, Launches, Copies, Syncs, Captured, GateWaits, GateWaitNS, Unhooked, Recoveries uint64
}

// Counters reads them, each once.
func (p *Page) Counters() Counters {
	return Counters{
		HookedCalls: load64(p.mem, OffHeaderHookedCalls),
		Launches:    load64(p.mem, OffHeaderLaunches),
		Copies:      load64(p.mem, OffHeaderCopies),
		Syncs:       load64(p.mem, OffHeaderSyncs),
		Captured:    load64(p.mem, OffHeaderCaptured),
		GateWaits:   load64(p.mem, OffHeaderGateWaits),
		GateWaitNS:  load64(p.mem, OffHeaderGateWaitNS),
		Unhooked:    load64(p.mem, OffHeaderUnhooked),
		Recoveries:  load64(p.mem, OffHeaderRecoveries),
	}
}
