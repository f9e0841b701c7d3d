// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// pageSeals prevent the peer from truncating the mapping.
const pageSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Page is a mapped session page. The client may write any byte at any time. Readers therefore load
// each value once, atomically, and bound every index. The daemon writes only its own fields.
//
// The page stays mapped until the last holder releases it, because a worker stuck in an ioctl may
// outlive its session.
type Page struct {
	mem     []byte
	version uint32
	refs    atomic.Int32
}

// pageBytes returns the size of a page of that version.
func pageBytes(version uint32) uint32 {
	if version < 5 {
		return PageBytes4
	}
	return PageBytes
}

// NewPage creates, seals and maps a memory file with a session's identity, in the current version.
// The caller passes on and closes the descriptor.
func NewPage(session uint64) (*Page, int, error) { return NewPageVersion(session, Version) }

// NewPageVersion is NewPage for a client of another version.
func NewPageVersion(session uint64, version uint32) (*Page, int, error) {
	fd, err := unix.MemfdCreate("xsched-page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, fmt.Errorf("create page: %w", err)
	}
	p, err := setUpPage(fd, session, version)
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, err
	}
	return p, fd, nil
}

func setUpPage(fd int, session uint64, version uint32) (*Page, error) {
	if err := unix.Ftruncate(fd, int64(pageBytes(version))); err != nil {
		return nil, fmt.Errorf("size page: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, pageSeals); err != nil {
		return nil, fmt.Errorf("seal page: %w", err)
	}
	p, err := MapPage(fd)
	if err != nil {
		return nil, err
	}
	p.version = version
	store32(p.mem, OffHeaderVersion, version)
	store32(p.mem, OffHeaderPageBytes, pageBytes(version))
	store32(p.mem, OffHeaderMaxQueues, MaxQueues)
	store64(p.mem, OffHeaderSessionID, session)
	store64(p.mem, OffHeaderHeartbeatLimitNS, HeartbeatLimitNS)
	store32(p.mem, OffHeaderMagic, PageMagic)
	return p, nil
}

// MapPage maps a page from another process after checking its seals.
func MapPage(fd int) (*Page, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat page: %w", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("read seals of page: %w", err)
	}
	if (st.Size != PageBytes && st.Size != PageBytes4) || seals&pageSeals != pageSeals {
		return nil, fmt.Errorf("map page: %d bytes with seals %#x, want %d with %#x", st.Size, seals, PageBytes, pageSeals)
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map page: %w", err)
	}
	p := &Page{mem: mem, version: load32(mem, OffHeaderVersion)}
	p.refs.Store(1)
	return p, nil
}

// Version returns the page's version of the contract.
func (p *Page) Version() uint32 { return p.version }

// Retain adds a holder. Preconditions: another holder exists.
func (p *Page) Retain() *Page {
	p.refs.Add(1)
	return p
}

// Release drops a holder and unmaps the page with the last one.
func (p *Page) Release() {
	if p.refs.Add(-1) == 0 {
		mem := p.mem
		p.mem = nil
		_ = unix.Munmap(mem)
	}
}

// Heartbeat records that the engine is alive.
func (p *Page) Heartbeat(now model.Time) { store64(p.mem, OffHeaderHeartbeatNS, uint64(now)) }

// Recoveries returns the client's count of recoveries of the whole process.
func (p *Page) Recoveries() uint64 { return load64(p.mem, OffHeaderRecoveries) }

// QueueCount returns the number of slots ever used, bounded by MaxQueues.
func (p *Page) QueueCount() int { return int(min(load64(p.mem, OffHeaderQueueCount), MaxQueues)) }

// QueueView is a snapshot of a slot's client half.
type QueueView struct {
	Transitions uint64
	ChangedNS   uint64
	Generation  uint64
	Device      model.DeviceID
	Priority    int32
	Stream      bool // one stream, not a whole context
	Submitted   uint64
	// Since version 5; zero in version 4.
	Launches uint64 // kernels and graphs; while busy an estimate, current under TellProgress
	Waits    uint64 // times a thread began to wait after submitting
	Copies   uint64 // copies and memsets
	Bursts   uint64 // batches released to the device
	BusyNS   int64  // raw; see Worked
	FedNS    uint64 // raw; see Fed
}

// InUse reports whether the slot holds a queue.
func (q *QueueView) InUse() bool { return q.Generation&1 == 1 }

// Busy reports whether the queue has work.
func (q *QueueView) Busy() bool { return q.Transitions&1 == 1 }

// Worked returns the client-reported busy time up to now.
func (q *QueueView) Worked(now model.Time) time.Duration {
	if q.BusyNS < 0 {
		return time.Duration(q.BusyNS + int64(now))
	}
	return time.Duration(q.BusyNS)
}

// Finished returns the client-reported busy time up to the end of its last busy period.
func (q *QueueView) Finished() time.Duration {
	if q.BusyNS < 0 {
		return time.Duration(q.BusyNS + int64(q.ChangedNS))
	}
	return time.Duration(q.BusyNS)
}

// Fed returns how long the program submitted work before it waited, in the busy period that started
// at began; 0: unknown.
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

// progress returns the place of slot i's progress; pages of version 4 have none.
func (p *Page) progress(i int) (int, bool) {
	return ProgressOffset + i*ProgressBytes, i >= 0 && i < MaxQueues && len(p.mem) == PageBytes
}

// Queue reads slot i; an out-of-range slot reads as unused. The generation comes first, because the
// client publishes it last.
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
	// Read transitions before the timestamp. The client writes them in reverse, so the timestamp
	// belongs to this transition or a later one.
	q.Transitions = load64(p.mem, at+OffQueueTransitions)
	q.ChangedNS = load64(p.mem, at+OffQueueChangedNS)
	q.BusyNS = int64(load64(p.mem, at+OffQueueBusyNS))
	if done, ok := p.progress(i); ok {
		q.Copies = load64(p.mem, done+OffProgressCopies)
		q.Launches = load64(p.mem, done+OffProgressLaunches)
		q.Bursts = load64(p.mem, done+OffProgressBursts)
		// The client writes the wait's time before the count.
		q.Waits = load64(p.mem, done+OffProgressWaits)
	}
	q.FedNS = load64(p.mem, at+OffQueueFedNS)
	return q
}

// Hush disables the doorbell for slot i.
func (p *Page) Hush(i int) {
	if at, ok := slot(i); ok {
		store32(p.mem, at+OffQueueQuiet, 1)
	}
}

// Listen enables the doorbell and then reads the slot, so that no silent change is missed.
func (p *Page) Listen(i int) QueueView {
	if at, ok := slot(i); ok {
		store32(p.mem, at+OffQueueQuiet, 0)
	}
	return p.Queue(i)
}

// SetTell asks for reports about slot i: TellProgress, TellWait, or both. Clients of version 4 ignore
// it.
func (p *Page) SetTell(i int, tell uint32) {
	if at, ok := slot(i); ok {
		store32(p.mem, at+OffQueueTell, tell)
	}
}

// SetGate sets the gate of slot i to GateOpen, GateHeld or GateBatch with the size of a burst, and wakes held launchers unless
// it stays closed. Clients of version 4 know no batches: their gate is open instead.
func (p *Page) SetGate(i int, state uint32) {
	at, ok := slot(i)
	if !ok {
		return
	}
	if state&(1<<BurstShift-1) == GateBatch && p.version < 5 {
		state = GateOpen
	}
	store32(p.mem, at+OffQueueGate, state)
	if state != GateHeld {
		futexWake(p.mem, at+OffQueueGate)
	}
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

// Signs are the last signs of life of the library's threads in the client; 0: none, or a library of
// version 4.
type Signs struct{ Helper, Watcher model.Time }

// Signs reads each sign of life once. Times in the future count as now.
func (p *Page) Signs(now model.Time) Signs {
	at := func(offset int) model.Time { return min(model.Time(min(load64(p.mem, offset), math.MaxInt64)), now) }
	return Signs{at(OffHeaderHelperNS), at(OffHeaderWatcherNS)}
}

// Counters are the client's counters.
type Counters struct {
	HookedCalls, Launches, Copies, Syncs, Captured, GateWaits, GateWaitNS, Unhooked, Recoveries uint64
}

// Counters reads each counter once.
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
		Recoveries:  load64(p.mem, OffHeaderRecoveries) + load64(p.mem, OffHeaderLeaseRecoveries),
	}
}
