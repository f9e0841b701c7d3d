// SPDX-License-Identifier: Apache-2.0

// Package policy decides which queues of a device run, and with which
// hardware timeslice.
//
// A policy is a pure function of the time, a View of one device and its own
// State. It does no I/O, reads no clock and never writes to the view, so every
// decision can be replayed.
//
// A new policy is one file with a type that has a Decide method, one line in
// registry.go and one page in docs/policies. Its state is a separate type, the
// last parameter of Decide. The scheduler applies the starvation
// bound (starve.go) and group scheduling (group.go) to every policy, and the
// engine the limits of users (cap.go).
package policy

import (
	"time"

	"xsched/internal/model"
)

// Policy turns the view of one device into a plan. S is the policy's state of a
// device; the zero value is the state of a new device. Only Decide accesses it.
type Policy[S any] interface {
	// Decide returns one verdict per queue of the view, in its order, and the
	// latest time at which to ask again (model.Never: only after a change).
	// The scheduler adapts verdicts to what each queue supports: a policy may
	// plan a timeslice for a queue that has none.
	Decide(now model.Time, v *View, s *S) (model.Plan, model.Time)
}

// Ranker is a policy with its own notion of priority. Queues are ordered by
// rank. Without a Ranker, the rank of a queue is its priority.
type Ranker interface {
	// Rank returns the rank of a queue. process is the highest priority of all
	// queues of its process, on any device.
	Rank(q *model.Queue, process model.Priority) model.Priority
}

// Knobs are the tunables of an administrator. The defaults follow from
// measurements on an H200: a switch between two full processes costs about
// 0.2 ms, suspending a process through the driver 0.53-0.63 ms, resuming it
// 0.21-0.35 ms, and the driver's own timeslice is 2 ms.
type Knobs struct {
	// Quantum is the turn length of equal low-priority queues. A turn costs a
	// suspend and a resume (0.75-1 ms): 50 ms keeps that below 2 %, where the
	// driver's own 2 ms slices lose 10 % to switching.
	Quantum time.Duration
	// StarvationBound is how long a ready queue may go without progress; 0
	// disables the bound.
	StarvationBound time.Duration
	// Hold is how long an idle queue keeps its turn. It equals the cost of a
	// hand-over, so waiting costs at most twice the best choice in hindsight.
	Hold time.Duration
	// HighSlice is the timeslice of the highest class: longer than any burst.
	HighSlice time.Duration
	// LowSlice is the timeslice of the one low-priority queue beside it. The
	// hardware leaves it as soon as the high class has work.
	LowSlice time.Duration
	// PeerSlice is for equals that want throughput, or that would otherwise
	// delay each other by a whole HighSlice: 10 ms lose 2 % to switching.
	PeerSlice time.Duration
	// GrantSlice is the timeslice of a starved queue during its grant. Beside
	// native slices it gets four fifths of the device, and the high class waits
	// no longer than this.
	GrantSlice time.Duration
	// NativeSlice is the driver's default.
	NativeSlice time.Duration
	// Timeslice is the slice of the smallest share: 5 ms lose at most 4 % to
	// switching. ShareMax bounds the slice of the largest, and so the wait of
	// the others: a ratio above 10 shortens the smallest, down to UsefulSlice.
	Timeslice, ShareMax time.Duration
	// Window is the period over which a strict utilization holds: four turns.
	Window time.Duration
	// Boost is the interval at which MLFQ forgets what it has learnt.
	Boost time.Duration
}

// DefaultKnobs returns the defaults.
func DefaultKnobs() Knobs {
	return Knobs{
		Quantum:         50 * time.Millisecond,
		StarvationBound: 2 * time.Second,
		Hold:            500 * time.Microsecond,
		HighSlice:       time.Second,
		LowSlice:        time.Microsecond,
		PeerSlice:       10 * time.Millisecond,
		GrantSlice:      10 * time.Millisecond,
		NativeSlice:     2 * time.Millisecond,
		Timeslice:       5 * time.Millisecond,
		ShareMax:        50 * time.Millisecond,
		Window:          200 * time.Millisecond,
		Boost:           time.Second,
	}
}

const (
	// UsefulSlice is the shortest slice with which several runnable queues still
	// progress: three at 500 us keep 67 % of the chip, at 200 us 41 %, at 1 us none.
	UsefulSlice = 500 * time.Microsecond
	// LongSlice and above starve queues with shorter slices beside them: a
	// fiftieth of the device is no progress to speak of.
	LongSlice = 100 * time.Millisecond
)

// tiny reports that a queue with this verdict progresses only on its own.
func tiny(p model.Verdict) bool { return p.Run && p.Slice != 0 && p.Slice < UsefulSlice }
