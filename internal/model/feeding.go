// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// A segment is what a program submits between the end of one wait and the beginning of the next.
const (
	// SegmentMin is how long a stop and a resume take: a shorter segment has no use of a stop, a shorter pause is
	// not worth a resume, and a stop outlasts the predicted wait by as much. sim.TestServingTokens.
	SegmentMin = time.Millisecond
	// SegmentGap is the pause that ends a segment for whose end no thread waited. sim.TestWatcherSplitsRequests.
	SegmentGap = 5 * time.Millisecond
)

// Lower is what the lower queues of a device did while a program submitted a segment.
type Lower int8

// LowerIdle: none had work, or they say nothing about stops. LowerYield: they had work, and stopped if Feeding said so.
// LowerCompete: they had work and shared the device natively. The program may have waited for each of them.
const (
	LowerIdle Lower = iota
	LowerYield
	LowerCompete
)

// NotWaited is the submission time of a busy period at whose end the device had no work left although no
// thread waited: the request goes on.
const NotWaited = time.Duration(-1)

// Progress is what a program has submitted so far.
type Progress struct {
	Launches uint64
	Bursts   uint64 // batches that were released to the device
	Waits    bool   // a thread waits for the launches
}

// Feeding is what policies know about how a program submits work.
type Feeding struct {
	Class Class
	// Waits: a thread waits for the work that it submitted.
	Waits bool
	// Paused: the device has no work left, and nobody waited for it. The request goes on.
	Paused bool
	// Hold is for how long after its work lower queues stay suspended, because more work of the same
	// request follows; 0: they don't.
	Hold time.Duration
	// From StopAt on, and until StopUntil at most, lower queues delay the program. 0: not.
	StopAt    Time
	StopUntil Time
	// Burst is how many of the program's kernels should gather on the device (Batching); 0: none.
	Burst uint32
	// CheckAt is when to look at the program's progress; 0: never.
	CheckAt Time
}

// Stops reports whether lower queues should be stopped now, and when that ends or begins; Never: not
// before something changes.
func (f Feeding) Stops(now Time) (bool, Time) {
	switch {
	case f.StopAt == 0 || now >= f.StopUntil:
		return false, Never
	case now < f.StopAt:
		return false, f.StopAt
	}
	return true, f.StopUntil
}

// SegmentState is what is known about a program's segments, for display.
type SegmentState struct {
	Class Class
	Known int // segments learnt from
	// Lead is how long before the predicted wait lower queues are stopped.
	Lead time.Duration
	// Hits is the part of the predictions that were of use. Without Predicted it is too small to act on.
	Hits      float64
	Predicted bool
	Counts    SegmentCounts
	Batch     Batching
}

// SegmentCounts counts the segments of a launch-bound program by how their stop was.
type SegmentCounts struct {
	InTime  uint64 // in force at the wait
	Late    uint64
	Early   uint64 // given up before the wait
	Unaided uint64 // at the wait, because the prediction is too poor
}
