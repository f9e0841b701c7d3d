// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"time"

	"xsched/internal/model"
)

// EventKind is the type of an Event.
type EventKind uint8

// Event kinds, with the fields that each uses beside At.
const (
	EventAdd       EventKind = iota + 1 // Queue
	EventRemove                         // ID
	EventBusy                           // ID, On, Length: submission time of the busy period, Tail: the wait after it, if known
	EventHint                           // PID, Hint
	EventQueueHint                      // ID, Hint
	EventHeld                           // PID, On
	EventLevel                          // ID, Level, Best, On: has timeslices
	EventPolicy                         // Name, Device: 0 for the default; without Name the default's
	EventMode                           // Name, Level, Device: as for EventPolicy
	EventQuantum                        // Length
	EventUnmanaged                      // Device, On
	EventMark                           // PID, On: a request begins or ends
	EventDecide                         // Changes, Wake
	EventProgress                       // ID, Count: launches so far, Bursts, On: a thread waits for them
	EventCopying                        // ID, On: the queue has copies only
	EventBounds                         // Length: hold, Tail: starvation bound
)

// kindNames are part of the recording format.
var kindNames = [...]string{
	EventAdd: "add", EventRemove: "remove", EventBusy: "busy", EventHint: "hint", EventQueueHint: "queue_hint", EventHeld: "held",
	EventLevel: "level", EventPolicy: "policy", EventMode: "mode", EventQuantum: "quantum", EventUnmanaged: "unmanaged",
	EventMark: "mark", EventDecide: "decide", EventProgress: "progress", EventCopying: "copying",
	EventBounds: "bounds",
}

func (k EventKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", int(k))
}

// MarshalText implements encoding.TextMarshaler.
func (k EventKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *EventKind) UnmarshalText(text []byte) error {
	i := slices.Index(kindNames[:], string(text))
	if i <= 0 {
		return fmt.Errorf("unknown event kind %q", text)
	}
	*k = EventKind(i)
	return nil
}

// Event is one input of an engine or one of its decisions. An engine's behavior follows from
// its Config and its events alone.
type Event struct {
	Kind    EventKind       `json:"kind"`
	At      model.Time      `json:"at,omitempty"`
	ID      model.QueueID   `json:"id,omitzero"`
	PID     int             `json:"pid,omitempty"`
	Device  model.DeviceID  `json:"device,omitempty"`
	On      bool            `json:"on,omitempty"`
	Level   model.Level     `json:"level,omitempty"`
	Best    model.Level     `json:"best,omitempty"`
	Length  time.Duration   `json:"length,omitempty"`
	Tail    time.Duration   `json:"tail,omitempty"`
	Count   uint64          `json:"count,omitempty"`
	Bursts  uint64          `json:"bursts,omitempty"`
	Name    string          `json:"name,omitempty"`
	Hint    *model.Hint     `json:"hint,omitempty"`
	Queue   *model.Queue    `json:"queue,omitempty"`
	Changes []model.Desired `json:"changes,omitempty"`
	Wake    model.Time      `json:"wake,omitempty"`
}

// Observe calls f after every call that changes the engine, in order, from the
// goroutine that makes the call. The event and what it points to are valid only
// during the call of f. nil ends the observation.
func (e *Engine) Observe(f func(*Event)) {
	e.observer = f
	e.agenda.takeFresh()
	for _, d := range e.devices { // an observer decides which queues are alone
		d.fresh = true
	}
	e.agenda.fresh, e.agenda.all = slices.Clone(e.devices), true
}

// saw reports an event to the observer, if there is one.
func (e *Engine) saw(ev Event) {
	if e.observer != nil {
		e.seen = ev
		e.observer(&e.seen)
	}
}

// Do applies an event to the engine. For EventDecide it returns the engine's own decision,
// which may differ from the recorded one.
func (e *Engine) Do(ev *Event) ([]model.Desired, model.Time, error) {
	switch ev.Kind {
	case EventAdd:
		e.AddQueue(ev.At, *ev.Queue)
	case EventRemove:
		e.RemoveQueue(ev.At, ev.ID)
	case EventBusy:
		e.setBusy(ev.At, ev.ID, ev.On, ev.Length, ev.Tail)
	case EventProgress:
		e.SetProgress(ev.At, ev.ID, model.Progress{Launches: ev.Count, Bursts: ev.Bursts, Waits: ev.On})
	case EventHint:
		e.SetHint(ev.At, ev.PID, *ev.Hint)
	case EventQueueHint:
		e.SetQueueHint(ev.At, ev.ID, *ev.Hint)
	case EventHeld:
		e.SetHeld(ev.At, ev.PID, ev.On)
	case EventLevel:
		e.SetLevel(ev.At, ev.ID, ev.Level, ev.Best, ev.On)
	case EventPolicy:
		if ev.Device != 0 {
			return nil, model.Never, e.SetDevicePolicy(ev.Device, ev.Name)
		}
		return nil, model.Never, e.SetPolicy(ev.Name)
	case EventMode:
		if ev.Device != 0 {
			return nil, model.Never, e.SetDeviceMode(ev.Device, model.Mode(ev.Name), ev.Level)
		}
		return nil, model.Never, e.SetMode(model.Mode(ev.Name), ev.Level)
	case EventQuantum:
		e.SetQuantum(ev.Length)
	case EventBounds:
		e.SetBounds(ev.Length, ev.Tail)
	case EventUnmanaged:
		e.SetUnmanaged(ev.At, ev.Device, ev.On)
	case EventMark:
		e.MarkRequest(ev.At, ev.PID, ev.On)
	case EventCopying:
		e.SetCopying(ev.At, ev.ID, ev.On)
	case EventDecide:
		changes, wake := e.Decide(ev.At)
		return changes, wake, nil
	default:
		return nil, model.Never, fmt.Errorf("do event: unknown kind %d", ev.Kind)
	}
	return nil, model.Never, nil
}
