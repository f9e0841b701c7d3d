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
	policy  *policy.Scheduler
	devices []*device // by ID
	queues  map[model.QueueID]*record
	changes []model.Desired
	stats   Stats

	// Devices in the order in which they are decided: who leads a gang before who follows.
	order      []*device
	gangs      map[string]*gang
	anyGang    bool
	regrouping bool

	held      map[int]bool // processes that are, or once were: the queues know
	unmanaged map[model.DeviceID]bool
	processes map[int]model.Priority // scratch of rank

	observer func(*Event)
	seen     Event // the one the observer looks at
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
	dev    *device
	gang   *gang
	index  int  // in dev.view.Queues
	slices bool // the device's, whatever the mode

	// The rest of its clock, while the view is to be rebuilt.
	flip   model.Time
	credit time.Duration
	v0     float64
	chance bool

	verdict model.Verdict // in force; sent is what it means while the queue is busy, or idle
	sent    model.Desired
	state   QueueState // the counters of it
}

// New returns an engine without queues.
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, queues: make(map[model.QueueID]*record), held: make(map[int]bool)}
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
	e.rank(0)
	for _, d := range e.devices {
		d.restructure()
		d.view.Bind(p)
		// A grant belongs to the plan it was made for; the count goes on.
		d.view.Grant = policy.Grant{Count: d.view.Grant.Count}
	}
	e.saw(Event{Kind: EventPolicy, Name: e.cfg.Policy})
	return nil
}

// SetQuantum changes how long a turn is, from the next Decide on; it must be positive.
func (e *Engine) SetQuantum(d time.Duration) {
	e.cfg.Quantum = d
	e.saw(Event{Kind: EventQuantum, Length: d})
	for _, d := range e.devices {
		d.restructure()
	}
}

// SetMode changes the mode from the next Decide on. The level is for ModeLevel.
func (e *Engine) SetMode(mode model.Mode, level model.Level) error {
	if err := checkMode(mode, level); err != nil {
		return err
	}
	e.cfg.Mode, e.cfg.ForceLevel = mode, level
	e.saw(Event{Kind: EventMode, Name: string(mode), Level: level})
	for _, d := range e.devices {
		d.restructure()
	}
	return nil
}

// AddQueue makes a queue known: ID, PID, Device, Hint, Level (resolved), Slices, and Busy if
// it has work already. A queue of a process that is held is held too. A known ID is replaced.
func (e *Engine) AddQueue(now model.Time, q model.Queue) {
	e.RemoveQueue(now, q.ID)
	if q.ChangedAt > now || q.Busy && q.ChangedAt == 0 {
		q.ChangedAt = now // what a client says about the future counts for nothing
	}
	if e.observer != nil {
		added := q // on the heap only where somebody looks
		e.saw(Event{Kind: EventAdd, At: now, Queue: &added})
	}
	for _, d := range e.devices {
		for i := range d.view.Queues {
			if !e.held[q.PID] {
				break
			}
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
		d := newDevice(q.Device)
		d.view.Bind(e.policy)
		d.view.Unmanaged = e.unmanaged[q.Device]
		e.devices = slices.Insert(e.devices, at, d)
	}
	// Until a verdict says otherwise a queue runs: nobody has stopped it.
	q.Running, q.RunSince, q.WaitSince = true, now, now
	q.Rank = e.policy.Rank(&q, q.Hint.Priority)
	r := &record{dev: e.devices[at], slices: q.Slices, flip: now, v0: e.devices[at].view.V, sent: model.Desired{Queue: q.ID}, verdict: model.Verdict{Run: true}}
	e.queues[q.ID] = r
	r.dev.insert(q, r)
	e.regrouping, e.anyGang = true, e.anyGang || q.Hint.Gang != ""
	if e.policy.RanksProcesses() {
		e.rank(q.PID)
	}
}

// RemoveQueue forgets a queue; an unknown one is nothing.
func (e *Engine) RemoveQueue(now model.Time, id model.QueueID) {
	r := e.queues[id]
	if r == nil {
		return
	}
	e.saw(Event{Kind: EventRemove, At: now, ID: id})
	delete(e.queues, id)
	e.regrouping = true
	pid := r.dev.view.Queues[r.index].PID
	r.dev.remove(r.index)
	if e.policy.RanksProcesses() {
		defer e.rank(pid)
	}
	if len(r.dev.records) == 0 {
		e.stats.Grants += r.dev.view.Grant.Count
		e.devices = slices.DeleteFunc(e.devices, func(d *device) bool { return d == r.dev })
	}
}

// SetBusy says that a queue has work, or has none any more.
func (e *Engine) SetBusy(now model.Time, id model.QueueID, busy bool) { e.setBusy(now, id, busy, 0) }

// SetIdle says that a queue has no work any more, and for how long its program had been submitting
// before it waited for the rest; 0: that is not known.
func (e *Engine) SetIdle(now model.Time, id model.QueueID, fed time.Duration) {
	e.setBusy(now, id, false, fed)
}

func (e *Engine) setBusy(now model.Time, id model.QueueID, busy bool, fed time.Duration) {
	r := e.queues[id]
	if r == nil {
		return
	}
	d, q := r.dev, &r.dev.view.Queues[r.index]
	if q.Busy == busy {
		return
	}
	if len(d.records) == 1 {
		fed = 0 // of one that is alone changes may be left out, so nothing may be learnt from them
	}
	fed = min(fed, now.Sub(q.ChangedAt))
	q.Feeding.Learn(fed, now.Sub(q.ChangedAt))
	q.Busy, q.ChangedAt = busy, now
	e.saw(Event{Kind: EventBusy, At: now, ID: id, On: busy, Length: fed})
	d.readyChanged(now, r)
	if r.gang != nil {
		e.gangChanged(now, r.gang)
	}
}

// MarkRequest says that a request of a process begins or ends, for its latency target. From
// the first mark on only marks count, before it busy periods do.
func (e *Engine) MarkRequest(now model.Time, pid int, begin bool) {
	e.saw(Event{Kind: EventMark, At: now, PID: pid, On: begin})
	for _, d := range e.devices {
		if len(d.view.Services) > 0 {
			d.view.Mark(now, pid, begin)
			d.dirty = true
		}
	}
}

// SetUnmanaged says whether somebody whom the engine can't schedule may use a device.
func (e *Engine) SetUnmanaged(now model.Time, id model.DeviceID, unmanaged bool) {
	e.saw(Event{Kind: EventUnmanaged, At: now, Device: id, On: unmanaged})
	if unmanaged {
		if e.unmanaged == nil {
			e.unmanaged = make(map[model.DeviceID]bool)
		}
		e.unmanaged[id] = true
	} else {
		delete(e.unmanaged, id)
	}
	for _, d := range e.devices {
		if d.id == id && d.view.Unmanaged != unmanaged {
			d.view.Unmanaged, d.dirty = unmanaged, true
		}
	}
}

// SetHint changes the hint of all queues of a process and returns how many
// there are. The level that results is the caller's to resolve: SetLevel.
func (e *Engine) SetHint(now model.Time, pid int, hint model.Hint) int {
	if e.observer != nil {
		said := hint
		e.saw(Event{Kind: EventHint, At: now, PID: pid, Hint: &said})
	}
	return e.edit(now, pid, func(q *model.Queue) { q.Hint = hint })
}

// SetHeld suspends or resumes all queues of a process by hand, whatever the policy
// and the mode, and returns how many there are.
func (e *Engine) SetHeld(now model.Time, pid int, held bool) int {
	if held {
		e.held[pid] = true
	} else {
		delete(e.held, pid)
	}
	e.saw(Event{Kind: EventHeld, At: now, PID: pid, On: held})
	return e.edit(now, pid, func(q *model.Queue) { q.Held = held })
}

// SetLevel changes the level in force of one queue, and whether it has slices.
func (e *Engine) SetLevel(now model.Time, id model.QueueID, level model.Level, slices bool) {
	if r := e.queues[id]; r != nil {
		e.saw(Event{Kind: EventLevel, At: now, ID: id, Level: level, On: slices})
		r.dev.view.Queues[r.index].Level = level
		r.slices = slices
		r.dev.restructure()
	}
}

// SetQueueHint changes the hint of one queue, which is scheduled on its own from then on, and
// says whether it is known. The next SetHint of its process changes it again.
func (e *Engine) SetQueueHint(now model.Time, id model.QueueID, hint model.Hint) bool {
	r := e.queues[id]
	if r == nil {
		return false
	}
	r.dev.restructure()
	if e.observer != nil {
		said := hint
		e.saw(Event{Kind: EventQueueHint, At: now, ID: id, Hint: &said})
	}
	hint.PerQueue = true
	q := &r.dev.view.Queues[r.index]
	e.change(now, r, func(q *model.Queue) { q.Hint = hint })
	e.rank(q.PID)
	r.dev.unsorted = true
	return true
}

// edit changes the queues of a process and restores the order.
func (e *Engine) edit(now model.Time, pid int, change func(*model.Queue)) int {
	n := 0
	for _, d := range e.devices {
		mine := 0
		for i := range d.view.Queues {
			if d.view.Queues[i].PID == pid {
				d.restructure()
				d.unsorted = true
				e.change(now, d.records[i], change)
				mine++
			}
		}
		n += mine
	}
	e.rank(pid)
	return n
}

// change changes one queue.
func (e *Engine) change(now model.Time, r *record, change func(*model.Queue)) {
	q := &r.dev.view.Queues[r.index]
	was := q.Ready()
	change(q)
	e.regrouping, e.anyGang = true, e.anyGang || q.Hint.Gang != ""
	if q.Ready() && !was {
		r.dev.startWait(now, r)
	}
}

// Decide asks the policy about every device on which something happened or is
// due, and returns what must change since the last call and when to call again at the
// latest. The slice is reused by the next call.
func (e *Engine) Decide(now model.Time) ([]model.Desired, model.Time) {
	e.changes = e.changes[:0]
	e.regroup()
	wake := model.Never
	for _, d := range e.order {
		if d.dirty || now >= d.wake {
			e.decideDevice(now, d)
			if e.anyGang {
				e.lead(now, d)
			}
		}
		wake = min(wake, d.wake)
	}
	if e.observer != nil {
		e.saw(Event{Kind: EventDecide, At: now, Changes: e.changes, Wake: wake})
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
