// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Class is how a program submits its requests.
type Class int8

// The classes. A launch-bound program submits kernel by kernel nearly until its request ends, so that
// the device idles between kernels. A GPU-bound one submits and then waits for the device.
const (
	ClassUnknown Class = iota
	ClassGPUBound
	ClassLaunchBound
)

func (c Class) String() string {
	switch c {
	case ClassGPUBound:
		return "GPU-bound"
	case ClassLaunchBound:
		return "launch-bound"
	}
	return "unknown"
}

// Lows is what the lower queues of a device did while a program submitted a segment.
type Lows int8

// NoLows: none had work, or they say nothing about stops. LowsGiveWay: they had work, and stopped if
// Feeding said so. LowsCompete: they had work and shared the device natively. The program may have waited
// for each of them.
const (
	NoLows Lows = iota
	LowsGiveWay
	LowsCompete
)

// NotWaited is the submission time of a busy period at whose end the device had no work left although no
// thread waited: the request goes on.
const NotWaited = time.Duration(-1)

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
	// Batch: the program's kernels should gather on the device (Batching).
	Batch bool
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
