// SPDX-License-Identifier: Apache-2.0

// Package model holds the values the rest of XSched talks about: devices,
// queues, hints, plans. Values only: no I/O, no locks, no clocks.
package model

import (
	"fmt"
	"time"
)

// Time is CLOCK_MONOTONIC in nanoseconds: the clock of the shared page, so that
// times written by an application and by the daemon compare.
type Time int64

// Never is later than every other time: "no wake-up needed".
const Never = Time(1<<63 - 1)

// Add returns t moved by d; Never stays Never.
func (t Time) Add(d time.Duration) Time {
	if t == Never {
		return Never
	}
	return t + Time(d)
}

// Sub returns t - u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// DeviceID names a GPU by its PCI address: domain<<16 | bus<<8 | device<<3 | function.
type DeviceID uint64

// MakeDeviceID packs a PCI address.
func MakeDeviceID(domain, bus, slot, function uint32) DeviceID {
	return DeviceID(uint64(domain)<<16 | uint64(bus&0xff)<<8 | uint64(slot&0x1f)<<3 | uint64(function&7))
}

// String is the usual spelling of a PCI address, 0000:01:00.0.
func (d DeviceID) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%d", uint64(d)>>16, uint64(d)>>8&0xff, uint64(d)>>3&0x1f, uint64(d)&7)
}

// SessionID names one life of one client process at this daemon.
type SessionID uint64

// QueueID names a schedulable queue: a process's context on a device.
type QueueID struct {
	Session SessionID `json:"session"`
	Index   uint32    `json:"index,omitempty"` // slot in the session's page
}

// Level is what can be done to a running queue.
type Level int

// The levels of design.md. LevelAuto asks for the best one the device really does.
const (
	LevelAuto       Level = 0
	LevelBlock      Level = 1 // hold further launches, limit what is in flight
	LevelDeactivate Level = 2 // leaves at the end of its hardware slice, gets no other
	LevelInterrupt  Level = 3 // stopped now, in the middle of a kernel
)

func (l Level) String() string {
	if l == LevelAuto {
		return "auto"
	}
	return fmt.Sprintf("Lv%d", int(l))
}

// Priority of a process; bigger is more important.
type Priority int32

// Range of priorities, and the one that never runs.
const (
	PriorityNever   Priority = -256
	PriorityMin     Priority = -255
	PriorityDefault Priority = 0
	PriorityMax     Priority = 255
)

// Queue is the engine's knowledge of one schedulable queue; policies read it.
type Queue struct {
	ID     QueueID  `json:"id"`
	PID    int      `json:"pid"`
	Device DeviceID `json:"device"`
	Hint   Hint     `json:"hint"`
	// Level is the one in force: Hint.Level resolved against what the device does.
	Level Level `json:"level"`
	// Slices says that the device has hardware timeslices for this queue.
	Slices bool `json:"slices,omitempty"`

	Busy      bool `json:"busy,omitempty"`       // work submitted and not known to be finished
	ChangedAt Time `json:"changed_at,omitempty"` // when Busy last changed
	Guessed   bool `json:"guessed,omitempty"`    // Busy is a guess: nobody tells when it has work
	// Feeding is what its busy times tell about how its program submits.
	Feeding Feeding `json:"feeding,omitzero"`

	// Held: suspended by hand (xsched suspend PID); no policy may run it.
	Held bool `json:"held,omitempty"`

	// Running is the verdict in force; RunSince and WaitSince tell for how long it
	// has run, or has been ready without making progress on the GPU. Policies
	// that rotate read these instead of keeping state of their own.
	Running   bool `json:"-"`
	RunSince  Time `json:"-"`
	WaitSince Time `json:"-"`

	// Rank is the priority in force: Hint.Priority as the policy reads it.
	Rank Priority `json:"-"`
	// Got is the GPU time it had, as far as it can be told from who could run when.
	Got time.Duration `json:"-"`
	// Memo is what the policy in force remembers about this queue.
	Memo [2]int64 `json:"-"`
}

// Ready says that the queue could use the GPU now.
func (q *Queue) Ready() bool { return q.Busy && q.Eligible() }

// Eligible says that the queue may use the GPU at all.
func (q *Queue) Eligible() bool { return !q.Held && q.Hint.Priority > PriorityNever }

// Verdict is what a policy wants for one queue.
type Verdict struct {
	Run bool
	// Limit says that the queue may be stopped for another one at any time, so that
	// at Lv1 little of it may be in flight, now and not only when the other arrives.
	Limit bool
	// Slice is the hardware timeslice; 0 keeps the driver's own.
	Slice time.Duration
}

// Plan is a policy's answer: one verdict for each queue of the view, in its order.
type Plan []Verdict

// Desired is what the engine wants a device to make true for one queue.
type Desired struct {
	Queue   QueueID       `json:"queue"`
	Suspend Level         `json:"suspend,omitempty"` // 0: running; else stopped at this level
	Slice   time.Duration `json:"slice,omitempty"`   // 0: the driver's own
	// InFlight and Batch are the Lv1 limits; 0: none.
	InFlight int `json:"in_flight,omitempty"`
	Batch    int `json:"batch,omitempty"`
}

// Mode is how much of a plan is carried out; it switches live.
type Mode string

// The modes of `xsched mode`.
const (
	ModeOff       Mode = "off"       // nothing: the hardware shares as it likes
	ModeTimeslice Mode = "timeslice" // hardware timeslices only
	ModeSuspend   Mode = "suspend"   // suspend and resume only
	ModeLevel     Mode = "level"     // suspend and resume, every queue at one forced level
	ModeLive      Mode = "live"      // the whole plan; the default
)

// Modes lists the modes in the order help texts show them.
var Modes = []Mode{ModeOff, ModeTimeslice, ModeSuspend, ModeLevel, ModeLive}
