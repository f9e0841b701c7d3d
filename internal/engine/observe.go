// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"

	"xsched/internal/model"
)

// EventKind says what was done to an engine. The numbers are in recordings: they stay.
type EventKind uint8

// The kinds of an Event and the fields each uses, beside At.
const (
	EventAdd       EventKind = iota + 1 // Queue
	EventRemove                         // ID
	EventBusy                           // ID, On; Length: how long it was fed, if that is known
	EventHint                           // PID, Hint
	EventQueueHint                      // ID, Hint
	EventHeld                           // PID, On
	EventLevel                          // ID, Level, On: has slices
	EventPolicy                         // Name
	EventMode                           // Name, Level
	EventQuantum                        // Length
	EventUnmanaged                      // Device, On
	EventMark                           // PID, On: a request begins, or ends
	EventDecide                         // Changes, Wake
)

// Event is one thing that was done to an engine, or one decision of it. All that an
// engine does follows from its Config and its events.
type Event struct {
	Kind    EventKind
	At      model.Time
	ID      model.QueueID
	PID     int
	Device  model.DeviceID
	On      bool
	Level   model.Level
	Length  time.Duration
	Name    string
	Hint    *model.Hint
	Queue   *model.Queue
	Changes []model.Desired
	Wake    model.Time
}

// Observe has f called after everything that is done to the engine, in order, from the
// same goroutine; nil: nobody. The event and what it points to are f's only during
// the call.
func (e *Engine) Observe(f func(*Event)) { e.observer = f }

// saw tells the observer, if there is one.
func (e *Engine) saw(ev Event) {
	if e.observer != nil {
		e.seen = ev
		e.observer(&e.seen)
	}
}

// Do does to the engine what an event says. For EventDecide it returns the engine's own
// answer, which may differ from the event's.
func (e *Engine) Do(ev *Event) ([]model.Desired, model.Time, error) {
	switch ev.Kind {
	case EventAdd:
		e.AddQueue(ev.At, *ev.Queue)
	case EventRemove:
		e.RemoveQueue(ev.At, ev.ID)
	case EventBusy:
		e.setBusy(ev.At, ev.ID, ev.On, ev.Length)
	case EventHint:
		e.SetHint(ev.At, ev.PID, *ev.Hint)
	case EventQueueHint:
		e.SetQueueHint(ev.At, ev.ID, *ev.Hint)
	case EventHeld:
		e.SetHeld(ev.At, ev.PID, ev.On)
	case EventLevel:
		e.SetLevel(ev.At, ev.ID, ev.Level, ev.On)
	case EventPolicy:
		return nil, model.Never, e.SetPolicy(ev.Name)
	case EventMode:
		return nil, model.Never, e.SetMode(model.Mode(ev.Name), ev.Level)
	case EventQuantum:
		e.SetQuantum(ev.Length)
	case EventUnmanaged:
		e.SetUnmanaged(ev.At, ev.Device, ev.On)
	case EventMark:
		e.MarkRequest(ev.At, ev.PID, ev.On)
	case EventDecide:
		changes, wake := e.Decide(ev.At)
		return changes, wake, nil
	default:
		return nil, model.Never, fmt.Errorf("do event: unknown kind %d", ev.Kind)
	}
	return nil, model.Never, nil
}
