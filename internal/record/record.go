// SPDX-License-Identifier: Apache-2.0

// Package record writes the engine's event stream to disk and reads it back, so that a real
// workload can be replayed under another policy.
//
// A recording is JSON Lines in gzip: `zcat FILE | jq` reads it. Each line is one Item; the first
// line of a file is its Header. Every flush ends a gzip member, which carries a checksum, so a
// file that was cut off anywhere is readable up to the cut. docs/simulator.md describes the format.
package record

import (
	"errors"
	"fmt"
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// version of the format. Version 1 was binary and is no longer read.
const version = 2

// ErrCorrupt marks content that the recorder cannot have written.
var ErrCorrupt = errors.New("corrupt recording")

// Header opens every file of a recording.
type Header struct {
	Version int           `json:"version"`
	Program string        `json:"program"`          // version of the daemon
	Device  string        `json:"device,omitempty"` // kind of device it scheduled
	Part    int           `json:"part"`             // position of the file in the recording, from 0
	Started time.Time     `json:"started"`
	Base    model.Time    `json:"base_ns"` // start of the recording
	Config  engine.Config `json:"config"`  // at the start of the recording
}

// Item is one line of a recording: exactly one of Header, Event and State.
type Item struct {
	Header *Header `json:"header,omitempty"`
	*engine.Event
	// Program names the process behind the queue of an EventAdd.
	Program string `json:"program,omitempty"`
	State   *State `json:"state,omitempty"`
}

// State is a checkpoint: it replaces all queues and settings before it. The recorder writes one
// after lost events and at the start of every file but the first.
type State struct {
	At   model.Time `json:"at"`
	Lost uint64     `json:"lost,omitempty"` // events dropped before this checkpoint
	// Gap is set by the Reader if events before this checkpoint are missing, counted or not.
	Gap   bool   `json:"-"`
	Items []Item `json:"items"` // events that build the state
}

const (
	maxTime  = model.Time(1 << 60) // decades: sums of two do not overflow
	maxSlice = time.Duration(1 << 40)
	maxLimit = 1 << 30
	maxUser  = 4096 // bytes of a user's name
)

func within[T ~int | ~int8 | ~int64](v, most T) bool { return v >= 0 && v <= most }

// check refuses an event that the engine could not have emitted. Fields that the kind does not
// use are not checked, because Engine.Do ignores them.
func check(ev *engine.Event) error {
	length := ev.Length
	if ev.Kind == engine.EventBusy && length == model.NotWaited {
		length = 0
	}
	ok := within(ev.At, maxTime) && within(length, time.Duration(maxTime)) && within(ev.Tail, time.Duration(maxTime)) && within(ev.Level, model.LevelInterrupt) && within(ev.Best, model.LevelInterrupt) &&
		within(ev.PID, 1<<31-1) && ev.Wake >= 0
	switch ev.Kind {
	case engine.EventAdd:
		q := ev.Queue
		if q == nil {
			return fmt.Errorf("%w: event without its queue", ErrCorrupt)
		}
		ev.ID, ev.PID = q.ID, q.PID
		ok = ok && within(q.PID, 1<<31-1) && within(q.Level, model.LevelInterrupt) && within(q.Best, model.LevelInterrupt) && len(q.User) <= maxUser && within(q.ChangedAt, maxTime) &&
			q.Hint.Check() == nil
	case engine.EventHint, engine.EventQueueHint:
		ok = ok && ev.Hint != nil && ev.Hint.Check() == nil
	case engine.EventQuantum:
		ok = ok && ev.Length > 0 && ev.Length <= maxSlice
	case engine.EventDecide:
		for _, d := range ev.Changes {
			ok = ok && within(d.Suspend, model.LevelInterrupt) && within(d.Slice, maxSlice) && within(d.InFlight, maxLimit) && within(d.Batch, maxLimit)
		}
	}
	if !ok {
		return fmt.Errorf("%w: %v event has a missing or out-of-range value", ErrCorrupt, ev.Kind)
	}
	return nil
}
