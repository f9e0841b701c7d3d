// SPDX-License-Identifier: Apache-2.0

// Package residency decides which programs' memory leaves a GPU and which returns. It is pure: the clock is
// an argument, and it neither reads pages nor writes orders. It must not know what the programs run.
//
// A program that needs room is a requester: an allocation failed, or a call waits for memory that is away.
// The requester with the highest priority, and of those the one that waits longest, comes first. Its victims
// are lower programs at once; equal ones when their turn is over; a higher one after a minute without work. Only
// as many bytes leave as are short, so that a swap of two programs that nearly fit is small.
package residency

import (
	"math"
	"time"

	"xsched/internal/model"
)

// Phase is where the movable memory of a program on a device is; see enum xsw_residency.
type Phase uint32

// The phases. In all but Resident, every call of the process that may use memory waits.
const (
	Resident Phase = iota
	Draining
	Leaving
	Away
	Returning
)

// Result is how a move ended; see enum xsw_move_result.
type Result uint32

// The results.
const (
	Done Result = iota
	Busy
	Capturing
	HostFull
	NoRoom
	Failed
	Nothing
	Refused
)

// Want is what an order asks for.
type Want uint32

// The wants. WantNothing withdraws an order that is not carried out yet.
const (
	WantNothing Want = iota
	WantOut
	WantBack
)

// Verdict answers a program whose allocation had no room.
type Verdict uint32

// The verdicts.
const (
	VerdictNone Verdict = iota
	VerdictWait
	VerdictFail
)

// All of the movable memory.
const All = model.Bytes(math.MaxInt64)

const (
	// turn is the least time that a program keeps its memory among equals. Shorter ones would not pay even
	// where moving is fast: a framework needs about a second to fill its queues again.
	turn = 10 * time.Second
	// amortize is the ratio of a program's time to that of its moves: moving costs at most a tenth.
	amortize = 10
	// idleLong is how long a program has no work before a lower one may have its room.
	idleLong = time.Minute
	// patience is the longest back-off of a program that others wait for. A longer one follows five failures:
	// the program does not obey, and those that wait for it are out of memory.
	patience = 25 * time.Second
	// stall is the time without progress after which an order has failed. Draining takes 2 s at most.
	stall = 5 * time.Second
	// retryMin and retryMax are the back-off after a move that failed, and between attempts to return into
	// room that nobody has reported.
	retryMin = time.Second
	retryMax = time.Minute
	// slab is the unit in which programs pin host memory.
	slab = model.Bytes(64 << 20)
	// granule is the least amount that is moved.
	granule = model.Bytes(2 << 20)
	// slowest limits what a move counts as, in bytes per second: a program can't make its turn longer by
	// reporting the end late. Pinning host memory runs at 1.7 GB/s on an H200, copies at 55.
	slowest = 1 << 30
)

// Program is one program's memory on a device, as of now. Amounts are bounded by the caller.
type Program struct {
	ID       model.SessionID
	Priority model.Priority
	Movable  bool          // memory that it allocates from now on can leave
	Idle     time.Duration // without work for that long; 0: it has some
	Evicted  model.Bytes   // by hand: shall be away until restored; 0: none
	HostMost model.Bytes   // that it may pin, as its control group allows; 0: no limit
	Restored model.Time    // by hand: shall return; 0: no request

	Used, MovableBytes, AwayBytes, Pinned model.Bytes // Used has what an allocation waits for, too
	Phase                                 Phase
	Result                                Result
	Order                                 uint64 // the newest one that was carried out or refused
	Moved                                 model.Bytes

	Wanted          model.Bytes // by an allocation that had no room
	WantedAt        uint64      // identifies the request
	Waits           bool        // a call waits for memory that is away
	Room            model.Bytes // free bytes of the device, as the driver said
	RoomUnspecified bool        // nothing was reported yet
}

// resident is what it has on the device.
func (p *Program) resident() model.Bytes { return max(0, p.Used-p.AwayBytes-p.Wanted) }

// Order is what the daemon wants of one program's memory.
type Order struct {
	Sequence uint64 // 0: none yet
	Want     Want
	Bytes    model.Bytes // that leave, in addition to what is away; 0: all
	Host     model.Bytes // host memory that the program may pin
	Verdict  Verdict
	Answered uint64 // Program.WantedAt that Verdict is about

	By     model.SessionID // for whom memory leaves; 0: by hand
	ByHand bool
}

// Move is a move that has ended, for the journal.
type Move struct {
	ID     model.SessionID
	Want   Want
	By     model.SessionID // for whom it left; 0: nobody
	ByHand bool
	Result Result
	Failed bool // out only: nothing left
	Bytes  model.Bytes
	Took   time.Duration
}
