// SPDX-License-Identifier: Apache-2.0

// Package engine keeps what is known about every queue, asks the policy, and
// says what has to change: events in, desired states out. It does no I/O, has
// no goroutine and reads no clock, so the daemon, the simulator and a replay run the
// same code. One goroutine may use an Engine at a time.
package engine

import (
	"fmt"
	"slices"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// Levels is the size of an array indexed by model.Level.
const Levels = int(model.LevelInterrupt) + 1

// Engine is the scheduler's state.
type Engine struct {
	cfg     Config
	policy  policy.Policy
	devices []*device // by ID
	queues  map[model.QueueID]*record
	changes []model.Desired
	stats   Stats
}

// Stats are counts since the engine was made.
type Stats struct {
	Decisions   uint64         // times a policy was asked, per device
	Preemptions [Levels]uint64 // queues with work that were stopped, by level
	Yields      uint64         // queues with work that the hardware leaves for one with a longer slice
	Grants      uint64         // quanta given by the starvation bound
}

// record is the engine's own knowledge of a queue, beside the view's.
type record struct {
	// One cache line of what changes most.
	flip   model.Time    // when chance last changed
	credit time.Duration // progress too small to end its wait so far
	dev    *device
	index  int  // in dev.view.Queues
	chance bool // it can progress
	slices bool // the device's, whatever the mode

	sent  model.Desired
	state QueueState // the counters of it
}

// New returns an engine without queues.
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, queues: make(map[model.QueueID]*record)}
	if err := e.SetPolicy(cfg.Policy); err != nil {
		return nil, err
	}
	return e, nil
}

// Config returns the configuration in force.
func (e *Engine) Config() Config { return e.cfg }

// SetPolicy changes the policy from the next Decide on.
func (e *Engine) SetPolicy(name string) error {
	p, err := policy.New(name)
	if err != nil {
		return err
	}
	e.policy, e.cfg.Policy = p, p.Name()
	for _, d := range e.devices {
		d.dirty = true
		// A grant belongs to the plan it was made for; the count goes on.
		d.view.Grant = policy.Grant{Count: d.view.Grant.Count}
	}
	return nil
}

// SetMode changes the mode from the next Decide on. The level is for ModeLevel.
func (e *Engine) SetMode(mode model.Mode, level model.Level) error {
	if err := checkMode(mode, level); err != nil {
		return err
	}
	e.cfg.Mode, e.cfg.ForceLevel = mode, level
	for _, d := range e.devices {
		d.restructure()
	}
	return nil
}

// AddQueue makes a queue known: ID, PID, Device, Hint, Level (resolved), Slices, and Busy if
// it has work already. A queue of a process that is held is held too. A known ID is replaced.
func (e *Engine) AddQueue(now model.Time, q model.Queue) {
	e.RemoveQueue(now, q.ID)
	for _, d := range e.devices {
		for i := range d.view.Queues {
			if o := &d.view.Queues[i]; o.Held && o.PID == q.PID && o.ID.Session == q.ID.Session {
				q.Held = true
			}
		}
	}
	at, found := slices.BinarySearchFunc(e.devices, q.Device, func(d *device, id model.DeviceID) int {
		switch {
		case d.id < id:
			return -1
		case d.id > id:
			return 1
		}
		return 0
	})
	if !found {
		e.devices = slices.Insert(e.devices, at, newDevice(q.Device))
	}
	// Until a verdict says otherwise a queue runs: nobody has stopped it.
	q.Running, q.RunSince, q.WaitSince = true, now, now
	if q.ChangedAt > now || q.Busy && q.ChangedAt == 0 {
		q.ChangedAt = now // what a client says about the future counts for nothing
	}
	r := &record{dev: e.devices[at], slices: q.Slices, flip: now, sent: model.Desired{Queue: q.ID}}
	e.queues[q.ID] = r
	r.dev.insert(q, r)
}

// RemoveQueue forgets a queue; an unknown one is nothing.
func (e *Engine) RemoveQueue(_ model.Time, id model.QueueID) {
	r := e.queues[id]
	if r == nil {
		return
	}
	delete(e.queues, id)
	r.dev.remove(r.index)
	if len(r.dev.records) == 0 {
		e.stats.Grants += r.dev.view.Grant.Count
		e.devices = slices.DeleteFunc(e.devices, func(d *device) bool { return d == r.dev })
	}
}

// SetBusy says that a queue has work, or has none any more.
func (e *Engine) SetBusy(now model.Time, id model.QueueID, busy bool) {
	r := e.queues[id]
	if r == nil {
		return
	}
	d, q := r.dev, &r.dev.view.Queues[r.index]
	if q.Busy == busy {
		return
	}
	q.Busy, q.ChangedAt = busy, now
	d.readyChanged(now, r)
}

// SetHint changes the hint of all queues of a process and returns how many
// there are. The level that results is the caller's to resolve: SetLevel.
func (e *Engine) SetHint(now model.Time, pid int, hint model.Hint) int {
	return e.edit(now, pid, func(q *model.Queue) { q.Hint = hint })
}

// SetHeld suspends or resumes all queues of a process by hand, whatever the policy
// and the mode, and returns how many there are.
func (e *Engine) SetHeld(now model.Time, pid int, held bool) int {
	return e.edit(now, pid, func(q *model.Queue) { q.Held = held })
}

// SetLevel changes the level in force of one queue, and whether it has slices.
func (e *Engine) SetLevel(_ model.Time, id model.QueueID, level model.Level, slices bool) {
	if r := e.queues[id]; r != nil {
		r.dev.view.Queues[r.index].Level = level
		r.slices = slices
		r.dev.restructure()
	}
}

// edit changes the queues of a process and restores the order.
func (e *Engine) edit(now model.Time, pid int, change func(*model.Queue)) int {
	n := 0
	for _, d := range e.devices {
		mine := 0
		for i := range d.view.Queues {
			if q := &d.view.Queues[i]; q.PID == pid {
				was := q.Ready()
				change(q)
				if q.Ready() && !was {
					d.records[i].startWait(now, q)
				}
				mine++
			}
		}
		if mine > 0 {
			d.reorder()
		}
		n += mine
	}
	return n
}

// Decide asks the policy about every device on which something happened or is
// due, and returns what must change since the last call and when to call again at the
// latest. The slice is reused by the next call.
func (e *Engine) Decide(now model.Time) ([]model.Desired, model.Time) {
	e.changes = e.changes[:0]
	wake := model.Never
	for _, d := range e.devices {
		if d.dirty || now >= d.wake {
			e.decideDevice(now, d)
		}
		wake = min(wake, d.wake)
	}
	return e.changes, wake
}

// String says what the engine runs, for logs.
func (e *Engine) String() string {
	if e.cfg.Mode == model.ModeLevel {
		return fmt.Sprintf("%s, mode %s %d", e.cfg.Policy, e.cfg.Mode, e.cfg.ForceLevel)
	}
	return fmt.Sprintf("%s, mode %s", e.cfg.Policy, e.cfg.Mode)
}
