// SPDX-License-Identifier: Apache-2.0

// Package model defines the values that the rest of XSched exchanges: devices,
// queues, hints, plans. It does no I/O and has no locks or clocks.
package model

import (
	"fmt"
	"time"
)

// Time is CLOCK_MONOTONIC in nanoseconds. The shared page uses the same clock, so
// times written by an application and by the daemon are comparable.
type Time int64

// Never is later than every other time: no wake-up is needed.
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

// DeviceID identifies a GPU by its PCI address: domain<<16 | bus<<8 | device<<3 | function.
type DeviceID uint64

// MakeDeviceID packs a PCI address.
func MakeDeviceID(domain, bus, slot, function uint32) DeviceID {
	return DeviceID(uint64(domain)<<16 | uint64(bus&0xff)<<8 | uint64(slot&0x1f)<<3 | uint64(function&7))
}

// String is the usual spelling of a PCI address, 0000:01:00.0.
func (d DeviceID) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%d", uint64(d)>>16, uint64(d)>>8&0xff, uint64(d)>>3&0x1f, uint64(d)&7)
}

// SessionID identifies one connection of a client process to the daemon.
type SessionID uint64

// QueueID identifies a schedulable queue: a process's context on a device.
type QueueID struct {
	Session SessionID `json:"session"`
	Index   uint32    `json:"index,omitempty"` // slot in the session's page
}

// Level is how a running queue is suspended.
type Level int

// The preemption levels. LevelAuto asks for the best one that the device supports.
const (
	LevelAuto       Level = 0
	LevelBlock      Level = 1 // hold further launches, limit those in flight
	LevelDeactivate Level = 2 // let the current hardware timeslice end, grant no other
	LevelInterrupt  Level = 3 // stop now, in the middle of a kernel
)

func (l Level) String() string {
	if l == LevelAuto {
		return "auto"
	}
	return fmt.Sprintf("Lv%d", int(l))
}

// Priority of a process; a larger one is more important.
type Priority int32

// Range of priorities, and the one that never runs.
const (
	PriorityNever   Priority = -256
	PriorityMin     Priority = -255
	PriorityDefault Priority = 0
	PriorityMax     Priority = 255
)

// Queue is what is known about one schedulable queue.
type Queue struct {
	ID  QueueID `json:"id"`
	PID int     `json:"pid"`
	// User owns the process. Hint.Cap limits what a queue may do to those of other users.
	User   string   `json:"user,omitempty"`
	Device DeviceID `json:"device"`
	Hint   Hint     `json:"hint"`
	// Level is the one in force: Hint.Level resolved against what the device supports.
	Level Level `json:"level"`
	// Best is the highest level that the device supports; 0: the same as Level.
	Best Level `json:"best,omitempty"`
	// Slices: the device has hardware timeslices for this queue.
	Slices bool `json:"slices,omitempty"`

	Busy      bool `json:"busy,omitempty"`       // work submitted and not known to be finished
	ChangedAt Time `json:"changed_at,omitempty"` // when Busy last changed
	Guessed   bool `json:"guessed,omitempty"`    // Busy is an estimate: nothing reports when the queue has work
	// Feeding is how its program submits work.
	Feeding Feeding `json:"-"`
	// Held: suspended by hand (xsched suspend PID); no policy may run it.
	Held bool `json:"held,omitempty"`

	Running   bool `json:"-"` // the verdict in force
	WaitSince Time `json:"-"` // since when it is ready without progress on the GPU
	// Rank is the priority in force: Hint.Priority as the policy interprets it.
	Rank Priority `json:"-"`
	// Got is the GPU time it had, estimated from which queues could run when.
	Got time.Duration `json:"-"`
}

// Ready reports that the queue has work and may run.
func (q *Queue) Ready() bool { return q.Busy && q.Eligible() }

// Eligible reports that the queue may run at all.
func (q *Queue) Eligible() bool { return !q.Held && q.Hint.Priority > PriorityNever }

// Verdict is the decision of a policy about one queue.
type Verdict struct {
	Run bool
	// Limit: another queue may preempt this one at any time. At Lv1 that bounds the
	// launches in flight, now and not only when the other queue arrives.
	Limit bool
	// Slice is the hardware timeslice; 0 keeps the driver's own.
	Slice time.Duration
	// Gather is how many launches wait on the device for each other; 0: none.
	Gather uint32
	// Sharing is how lower queues share the device with this one, for display.
	Sharing Sharing
}

// Plan is one verdict per queue of a view, in its order.
type Plan []Verdict

// Desired is the state of one queue that a device must establish.
type Desired struct {
	Queue   QueueID       `json:"queue"`
	Suspend Level         `json:"suspend,omitempty"` // 0: running; else suspended at this level
	Slice   time.Duration `json:"slice,omitempty"`   // 0: the driver's own
	// InFlight and Batch are the Lv1 limits; 0: none.
	InFlight int `json:"in_flight,omitempty"`
	Batch    int `json:"batch,omitempty"`
	// Gather: as in Verdict.
	Gather uint32 `json:"gather,omitempty"`
}

// Mode selects which parts of a plan are carried out. It can change at any time.
type Mode string

// The modes of `xsched mode`.
const (
	ModeOff       Mode = "off"       // nothing: the driver shares the device
	ModeTimeslice Mode = "timeslice" // hardware timeslices only
	ModeSuspend   Mode = "suspend"   // suspend and resume only
	ModeLevel     Mode = "level"     // suspend and resume, every queue at one forced level
	ModeLive      Mode = "live"      // the whole plan; the default
)

// Modes lists the modes in the order of help texts.
var Modes = []Mode{ModeOff, ModeTimeslice, ModeSuspend, ModeLevel, ModeLive}
