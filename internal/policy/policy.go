// SPDX-License-Identifier: Apache-2.0

// Package policy decides who may use a device. A policy is a pure function of
// a View (the queues of one device and what is known about them) and the time:
// it does no I/O, reads no clock and keeps nothing between two calls, so every
// decision can be replayed.
//
// A new policy is one file with a type that implements Policy and one line in
// registry.go. What it must remember between two calls lies in the view (View.Memo,
// Queue.Memo), where the engine keeps it. The registry puts the starvation
// guard (starve.go) and the groups (group.go) around every policy.
package policy

import (
	"time"

	"xsched/internal/model"
)

// Policy turns what is known about one device into a plan.
type Policy interface {
	// Name is the one of the registry.
	Name() string
	// Decide returns one verdict for each queue of the view, in its order, and
	// the latest time at which it wants to be asked again (model.Never: only when
	// something changes). The plan is made with View.Base and View.Set, lies in the
	// view's buffer and is valid until the next call with that view.
	Decide(now model.Time, view *View) (model.Plan, model.Time)
}

// Knobs are what an administrator can turn. The reasons for the defaults are
// measurements on an H200: a switch between two full processes costs about
// 0.2 ms, stopping a process by the driver 0.53-0.63 ms, continuing it
// 0.21-0.35 ms, and the driver's own slice is 2 ms.
type Knobs struct {
	// Quantum is how long one of several equal low queues keeps its turn. A turn
	// costs a stop and a continue (0.75-1 ms): 50 ms keeps that below 2 %, where
	// the driver's own 2 ms slices lose 10 % to switching.
	Quantum time.Duration
	// StarvationBound is how long a ready queue may go without progress; 0: for ever.
	StarvationBound time.Duration
	// Hold is how long a queue that went idle keeps its place. As long as a hand-over
	// costs: then waiting is never more than twice the best choice made in
	// hindsight, and a program with short gaps between kernels keeps its turn.
	Hold time.Duration
	// HighSlice is the slice of the highest class: longer than any burst.
	HighSlice time.Duration
	// LowSlice is the slice of the one low queue beside it: the hardware
	// leaves it as soon as the high has work, with no software in the path.
	LowSlice time.Duration
	// PeerSlice is for equals that are known to want throughput, or that would
	// otherwise hold each other up for a whole HighSlice: 10 ms lose 2 % to switching.
	PeerSlice time.Duration
	// GrantSlice is the slice of a starved queue during its grant, beside others at
	// the driver's own: it gets four fifths, and the high waits no longer than this.
	GrantSlice time.Duration
	// NativeSlice is what the driver gives when nobody says anything.
	NativeSlice time.Duration
	// Timeslice is the slice of the smallest share: 5 ms lose 4 % to switching at
	// most, whoever of the sharers is active. ShareMax bounds the slice of the
	// largest, and so how long a small one waits: a ratio above 10 makes the
	// smallest shorter, down to UsefulSlice at 100.
	Timeslice, ShareMax time.Duration
	// Window is over which a strict utilisation holds: four turns.
	Window time.Duration
	// Boost is how often MLFQ forgets what it has learnt.
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
	// progress: three at 500 us keep 67 % of the chip, at 200 us 41 %, at 1 us nothing.
	UsefulSlice = 500 * time.Microsecond
	// LongSlice and longer ones starve whoever runs beside them with less: a fiftieth
	// of the device and below is no progress to speak of.
	LongSlice = 100 * time.Millisecond
)
