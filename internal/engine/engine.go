// SPDX-License-Identifier: Apache-2.0

// Package engine turns events into desired states: it tracks every queue, asks
// the policy and reports what has to change. It does no I/O, has no goroutine
// and reads no clock, so the daemon, the simulator and a replay run the same
// code. One goroutine may use an Engine at a time.
package engine

import (
	"cmp"
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

	// order is the devices in the order of decision: the one that leads a gang
	// before those that follow.
	order      []*device
	gangs      map[string]*gang
	anyGang    bool
	regrouping bool

	processes map[int][]*record // by PID
	unmanaged map[model.DeviceID]bool

	observer func(*Event)
	seen     Event // passed to the observer
}

// Stats are counts since the engine was made.
type Stats struct {
	Decisions   uint64         // calls of a policy, per device
	Preemptions [Levels]uint64 // queues with work that were suspended, by level
	Yields      uint64         // queues with work that the hardware left for one with a longer slice
	Grants      uint64         // quanta granted by the starvation bound
}

// record is the engine's state of a queue that policies do not see.
type record struct {
	dev    *device
	gang   *gang
	index  int  // in dev.view.Queues
	slices bool // supported by the device, whatever the mode

	since  model.Time    // when it began to progress
	credit time.Duration // progress too small to end its wait so far

	sent  model.Desired // the last one reported
	state QueueState    // its counters
}

// New returns an engine without queues.
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, queues: make(map[model.QueueID]*record), processes: make(map[int][]*record)}
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
	for pid := range e.processes {
		e.rank(pid)
	}
	for _, d := range e.devices {
		d.restructure()
		e.stats.Grants += d.state.Grants()
		d.state = p.NewState() // nothing is remembered from another policy
	}
	e.saw(Event{Kind: EventPolicy, Name: e.cfg.Policy})
	return nil
}

// SetQuantum changes the length of a turn, which must be positive, from the next
// Decide on.
func (e *Engine) SetQuantum(d time.Duration) {
	e.cfg.Quantum = d
	e.saw(Event{Kind: EventQuantum, Length: d})
	for _, d := range e.devices {
		d.pending = true
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

// AddQueue adds a queue: ID, PID, Device, Hint, Level (resolved), Slices, and
// Busy if it has work already. A queue of a process that is suspended by hand is
// suspended too. A known ID is replaced.
func (e *Engine) AddQueue(now model.Time, q model.Queue) {
	e.RemoveQueue(now, q.ID)
	if q.ChangedAt > now || q.Busy && q.ChangedAt == 0 {
		q.ChangedAt = now // a client cannot act in the future
	}
	if e.observer != nil {
		added := q // on the heap only with an observer
		e.saw(Event{Kind: EventAdd, At: now, Queue: &added})
	}
	for _, r := range e.processes[q.PID] {
		if o := r.dev.queue(r); o.Held && o.ID.Session == q.ID.Session {
			q.Held = true
		}
	}
	at, found := slices.BinarySearchFunc(e.devices, q.Device, func(d *device, id model.DeviceID) int {
		return cmp.Compare(d.id, id)
	})
	if !found {
		d := &device{id: q.Device, wake: model.Never, accounted: now, state: e.policy.NewState()}
		d.view.Unmanaged = e.unmanaged[q.Device]
		e.devices = slices.Insert(e.devices, at, d)
	}
	q.Running, q.WaitSince = true, now
	r := &record{dev: e.devices[at], slices: q.Slices, since: now, sent: model.Desired{Queue: q.ID}}
	e.queues[q.ID] = r
	e.processes[q.PID] = append(e.processes[q.PID], r)
	r.dev.insert(q, r)
	e.regrouping, e.anyGang = true, e.anyGang || q.Hint.Gang != ""
	e.rank(q.PID)
}

// RemoveQueue removes a queue, if it is known.
func (e *Engine) RemoveQueue(now model.Time, id model.QueueID) {
	r := e.queues[id]
	if r == nil {
		return
	}
	e.saw(Event{Kind: EventRemove, At: now, ID: id})
	delete(e.queues, id)
	e.regrouping = true
	pid := r.dev.queue(r).PID
	r.dev.remove(now, r.index)
	e.processes[pid] = slices.DeleteFunc(e.processes[pid], func(o *record) bool { return o == r })
	if len(e.processes[pid]) == 0 {
		delete(e.processes, pid)
	}
	e.rank(pid)
	if len(r.dev.records) == 0 {
		e.stats.Grants += r.dev.state.Grants()
		e.devices = slices.DeleteFunc(e.devices, func(d *device) bool { return d == r.dev })
	}
}

// SetBusy reports that a queue has work, or has none any more.
func (e *Engine) SetBusy(now model.Time, id model.QueueID, busy bool) { e.setBusy(now, id, busy, 0) }

// SetIdle reports that a queue has no work any more, and for how long its program
// submitted before it waited for the rest; 0: unknown.
func (e *Engine) SetIdle(now model.Time, id model.QueueID, fed time.Duration) {
	e.setBusy(now, id, false, fed)
}

func (e *Engine) setBusy(now model.Time, id model.QueueID, busy bool, fed time.Duration) {
	r := e.queues[id]
	if r == nil {
		return
	}
	d, q := r.dev, r.dev.queue(r)
	if q.Busy == busy {
		return
	}
	if len(d.records) == 1 {
		fed = 0 // changes of a queue that is alone may be left out: learn nothing from them
	}
	fed = min(fed, now.Sub(q.ChangedAt))
	q.Feeding.Learn(fed, now.Sub(q.ChangedAt))
	q.Busy, q.ChangedAt = busy, now
	e.saw(Event{Kind: EventBusy, At: now, ID: id, On: busy, Length: fed})
	d.pending = true
	d.busyChanged = append(d.busyChanged, r)
	if s := d.service(q.PID); s != nil {
		s.Work(now, busy)
	}
	if hasWork(q) {
		d.startWait(now, r)
	}
	if r.gang == nil {
		q.Ready = hasWork(q)
	} else if !e.regrouping {
		r.gang.lead.pending = true
	}
}

// MarkRequest reports that a request of a process begins or ends, for its latency
// target. From the first mark on only marks count; before it, busy periods do.
func (e *Engine) MarkRequest(now model.Time, pid int, begin bool) {
	e.saw(Event{Kind: EventMark, At: now, PID: pid, On: begin})
	for _, d := range e.devices {
		if s := d.service(pid); s != nil {
			d.epoch++
			s.Mark(now, begin, d.epoch)
			d.pending = true
		}
	}
}

// SetUnmanaged sets whether a process that the engine cannot schedule may use a
// device.
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
			d.view.Unmanaged, d.pending = unmanaged, true
		}
	}
}

// SetHint changes the hint of all queues of a process and returns how many there
// are. The caller resolves the resulting level: SetLevel.
func (e *Engine) SetHint(now model.Time, pid int, hint model.Hint) int {
	if e.observer != nil {
		said := hint
		e.saw(Event{Kind: EventHint, At: now, PID: pid, Hint: &said})
	}
	return e.edit(now, pid, func(q *model.Queue) { q.Hint = hint })
}

// SetHeld suspends or resumes all queues of a process by hand, whatever the
// policy and the mode, and returns how many there are.
func (e *Engine) SetHeld(now model.Time, pid int, held bool) int {
	e.saw(Event{Kind: EventHeld, At: now, PID: pid, On: held})
	return e.edit(now, pid, func(q *model.Queue) { q.Held = held })
}

// SetLevel changes the level in force of one queue, and whether it has slices.
func (e *Engine) SetLevel(now model.Time, id model.QueueID, level model.Level, slices bool) {
	if r := e.queues[id]; r != nil {
		e.saw(Event{Kind: EventLevel, At: now, ID: id, Level: level, On: slices})
		r.dev.queue(r).Level = level
		r.slices = slices
		r.dev.restructure()
	}
}

// SetQueueHint changes the hint of one queue, which is scheduled on its own from
// then on, and reports whether the queue is known. The next SetHint of its
// process changes it again.
func (e *Engine) SetQueueHint(now model.Time, id model.QueueID, hint model.Hint) bool {
	r := e.queues[id]
	if r == nil {
		return false
	}
	if e.observer != nil {
		said := hint
		e.saw(Event{Kind: EventQueueHint, At: now, ID: id, Hint: &said})
	}
	hint.PerQueue = true
	e.change(now, r, func(q *model.Queue) { q.Hint = hint })
	e.rank(r.dev.queue(r).PID)
	return true
}

// edit changes the queues of a process.
func (e *Engine) edit(now model.Time, pid int, change func(*model.Queue)) int {
	for _, r := range e.processes[pid] {
		e.change(now, r, change)
	}
	e.rank(pid)
	return len(e.processes[pid])
}

// change changes one queue.
func (e *Engine) change(now model.Time, r *record, change func(*model.Queue)) {
	q := r.dev.queue(r)
	had := hasWork(q)
	change(&q.Queue)
	r.dev.restructure()
	e.regrouping, e.anyGang = true, e.anyGang || q.Hint.Gang != ""
	if hasWork(q) && !had {
		r.dev.startWait(now, r)
	}
}

// rank sets the rank of the queues of a process, as the policy sees it.
func (e *Engine) rank(pid int) {
	top := model.PriorityNever
	for _, r := range e.processes[pid] {
		top = max(top, r.dev.queue(r).Hint.Priority)
	}
	for _, r := range e.processes[pid] {
		q := r.dev.queue(r)
		if rank := e.policy.Rank(&q.Queue, top); rank != q.Rank {
			q.Rank = rank
			r.dev.restructure()
		}
	}
}

// Decide asks the policy about every device on which something happened or is
// due. It returns what must change since the last call, and the latest time of
// the next one. The slice is reused by the next call.
func (e *Engine) Decide(now model.Time) ([]model.Desired, model.Time) {
	e.changes = e.changes[:0]
	e.regroup()
	wake := model.Never
	for _, d := range e.order {
		if d.pending || now >= d.wake {
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

// String describes the engine, for logs.
func (e *Engine) String() string {
	if e.cfg.Mode == model.ModeLevel {
		return fmt.Sprintf("%s, mode %s %d", e.cfg.Policy, e.cfg.Mode, e.cfg.ForceLevel)
	}
	return fmt.Sprintf("%s, mode %s", e.cfg.Policy, e.cfg.Mode)
}
