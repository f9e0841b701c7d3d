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
	"xsched/internal/predict"
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

	agenda     agenda
	gangs      map[string]*gang
	anyGang    bool
	regrouping bool

	processes map[int][]*record // by PID
	sessions  map[model.SessionID]*waiting
	unranked  map[int]bool // processes whose queues need a rank at the next decision
	unmanaged map[model.DeviceID]bool
	emptied   map[model.DeviceID]emptied // see pool.go

	protected []policy.ProtectionStatus // that changed; see Protected

	observer func(*Event)
	seen     Event // passed to the observer
	watcher  func(Transition)
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
	index  int           // in dev.view.Queues, or dev.parked
	parked *policy.Queue // nil: it is in the view
	nth    int           // in Engine.processes
	slices bool          // supported by the device, whatever the mode
	// hint is the hint as set. That in the view has only what counts now.
	hint model.Hint

	since  model.Time    // when it began to progress
	credit time.Duration // progress too small to end its wait so far

	copying    bool               // as reported; see copying.go
	protection *policy.Protection // of its process on the device; nil: none
	working    bool               // counted there as having work

	segments predict.Program
	progress model.Progress // of its program, if known
	bursts   uint64         // when its last request ended

	session *waiting // of its session
	waits   bool     // counted there; see waiting.go

	sent     model.Desired // the last one reported
	state    QueueState    // its counters
	activity Activity      // the last one reported; see activity.go
}

// New returns an engine without queues.
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, queues: make(map[model.QueueID]*record), processes: make(map[int][]*record), sessions: make(map[model.SessionID]*waiting), unranked: make(map[int]bool)}
	if err := e.SetPolicy(cfg.Policy); err != nil {
		return nil, err
	}
	for id, s := range cfg.Devices {
		if s.Policy == "" {
			continue
		}
		if err := e.SetDevicePolicy(id, s.Policy); err != nil {
			return nil, fmt.Errorf("check configuration of device %s: %w", id, err)
		}
	}
	return e, nil
}

// policyOf returns the policy of a device.
func (e *Engine) policyOf(id model.DeviceID) *policy.Scheduler {
	if name := e.cfg.Devices[id].Policy; name != "" {
		if p, err := policy.NewWith(name, e.cfg.Strategies); err == nil { // it was checked when it was set
			return p
		}
	}
	return e.policy
}

// Config returns the configuration, with the settings of single devices.
func (e *Engine) Config() Config { return e.cfg }

// SetPolicy changes the policy from the next Decide on, except on devices with a
// policy of their own.
func (e *Engine) SetPolicy(name string) error {
	p, err := policy.NewWith(name, e.cfg.Strategies)
	if err != nil {
		return err
	}
	e.policy, e.cfg.Policy = p, p.Name()
	for _, d := range e.devices {
		e.configure(d)
		if e.cfg.Devices[d.id].Policy == "" {
			e.usePolicy(d, p)
		}
	}
	for pid := range e.processes {
		e.unranked[pid] = true
	}
	e.saw(Event{Kind: EventPolicy, Name: e.cfg.Policy})
	return nil
}

// SetDevicePolicy changes the policy of one device, known or not, from the next
// Decide on. An empty name means the engine's policy.
func (e *Engine) SetDevicePolicy(id model.DeviceID, name string) error {
	p := e.policy
	if name != "" {
		var err error
		if p, err = policy.NewWith(name, e.cfg.Strategies); err != nil {
			return err
		}
		name = p.Name()
	}
	s := e.cfg.Devices[id]
	s.Policy = name
	if err := e.cfg.set(id, s); err != nil {
		return err
	}
	if d := e.device(id); d != nil {
		e.configure(d)
		e.usePolicy(d, p)
		for i := range d.view.Queues {
			e.unranked[d.view.Queues[i].PID] = true
		}
		for _, r := range d.parked {
			e.unranked[r.parked.PID] = true
		}
	}
	e.saw(Event{Kind: EventPolicy, Device: id, Name: name})
	return nil
}

// usePolicy puts a policy in force on a device. Nothing is remembered from the one
// before. The caller ranks the processes.
func (e *Engine) usePolicy(d *device, p *policy.Scheduler) {
	d.policy = p
	d.state = p.NewState()
}

// configure updates a device's configuration.
func (e *Engine) configure(d *device) {
	d.cfg, d.modeChanged = e.cfg.On(d.id), true
	d.restructure()
}

// device returns the device with an ID, or nil if no queue is there.
func (e *Engine) device(id model.DeviceID) *device {
	if at, found := e.search(id); found {
		return e.devices[at]
	}
	return nil
}

// devicesOf returns the devices with queues of a process, by ID.
func (e *Engine) devicesOf(pid int) []*device {
	var out []*device
	for _, r := range e.processes[pid] {
		at, found := slices.BinarySearchFunc(out, r.dev.id, func(d *device, id model.DeviceID) int { return cmp.Compare(d.id, id) })
		if !found {
			out = slices.Insert(out, at, r.dev)
		}
	}
	return out
}

func (e *Engine) search(id model.DeviceID) (at int, found bool) {
	return slices.BinarySearchFunc(e.devices, id, func(d *device, id model.DeviceID) int { return cmp.Compare(d.id, id) })
}

// SetQuantum changes the length of a turn, which must be positive, from the next
// Decide on.
func (e *Engine) SetQuantum(d time.Duration) {
	e.cfg.Quantum = d
	e.saw(Event{Kind: EventQuantum, Length: d})
	for _, d := range e.devices {
		d.cfg.Quantum = e.cfg.Quantum
		d.mark()
	}
}

// SetBounds changes Knobs.Hold and Knobs.StarvationBound from the next Decide on; 0: none.
func (e *Engine) SetBounds(hold, starvation time.Duration) {
	e.cfg.Hold, e.cfg.StarvationBound = hold, starvation
	e.saw(Event{Kind: EventBounds, Length: hold, Tail: starvation})
	for _, d := range e.devices {
		d.cfg.Hold, d.cfg.StarvationBound = hold, starvation
		d.mark()
	}
}

// SetMode changes the mode from the next Decide on, except on devices with a mode
// of their own. The level is for ModeLevel.
func (e *Engine) SetMode(mode model.Mode, level model.Level) error {
	if err := checkMode(mode, level); err != nil {
		return err
	}
	e.cfg.Mode, e.cfg.ForceLevel = mode, level
	e.saw(Event{Kind: EventMode, Name: string(mode), Level: level})
	for _, d := range e.devices {
		e.configure(d)
	}
	e.regrouping = true
	return nil
}

// SetDeviceMode changes the mode of one device, known or not, from the next Decide
// on. An empty mode means the engine's mode.
func (e *Engine) SetDeviceMode(id model.DeviceID, mode model.Mode, level model.Level) error {
	if mode != "" {
		if err := checkMode(mode, level); err != nil {
			return err
		}
	} else {
		level = 0
	}
	s := e.cfg.Devices[id]
	s.Mode, s.ForceLevel = mode, level
	if err := e.cfg.set(id, s); err != nil {
		return err
	}
	e.saw(Event{Kind: EventMode, Device: id, Name: string(mode), Level: level})
	if d := e.device(id); d != nil {
		e.configure(d)
	}
	e.regrouping = true
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
		if o := r.dev.queue(r); o.ID.Session == q.ID.Session {
			q.Held = o.Held // all queues of a session are held, or none
			break
		}
	}
	at, found := e.search(q.Device)
	if !found {
		d := &device{id: q.Device, accounted: now, cfg: e.cfg.On(q.Device), policy: e.policyOf(q.Device)}
		d.state = d.policy.NewState()
		e.refill(d)
		d.view.Unmanaged = e.unmanaged[q.Device]
		e.devices = slices.Insert(e.devices, at, d)
		e.agenda.add(d)
	}
	q.Running, q.WaitSince = true, now
	q.Feeding = model.Feeding{} // what was learnt is not in a recording
	r := &record{dev: e.devices[at], slices: q.Slices, hint: q.Hint, since: now, sent: model.Desired{Queue: q.ID}}
	e.queues[q.ID] = r
	e.joinSession(q.ID.Session, r)
	r.nth = len(e.processes[q.PID])
	e.processes[q.PID] = append(e.processes[q.PID], r)
	if q.Busy {
		r.segments.Drop(now) // it began before
	}
	r.dev.insert(q, r)
	r.dev.lowsChanged(now, q.PID)
	e.regrouping, e.anyGang = true, e.anyGang || q.Hint.Gang != ""
	e.unranked[q.PID] = true
}

// RemoveQueue removes a queue, if it is known.
func (e *Engine) RemoveQueue(now model.Time, id model.QueueID) {
	r := e.queues[id]
	if r == nil {
		return
	}
	e.saw(Event{Kind: EventRemove, At: now, ID: id})
	if e.watcher != nil {
		e.watcher(Transition{At: now, ID: id, PID: r.dev.queue(r).PID, Device: r.dev.id, Gone: true})
	}
	delete(e.queues, id)
	e.leaveSession(now, id.Session, r)
	e.regrouping = true
	pid := r.dev.queue(r).PID
	r.leaveProtection()
	r.setCopying(false)
	if r.parked != nil {
		r.dev.dropParked(r)
		r.parked = nil // it may be in dev.resend
	} else {
		r.dev.remove(now, r.index)
	}
	e.leaveProcess(pid, r)
	if r.dev.size() == 0 {
		e.empty(r.dev)
		at, _ := e.search(r.dev.id)
		e.devices = slices.Delete(e.devices, at, at+1)
		e.agenda.remove(r.dev)
	}
}

// leaveProcess removes a queue from those of its process.
func (e *Engine) leaveProcess(pid int, r *record) {
	all := e.processes[pid]
	last := len(all) - 1
	all[r.nth] = all[last]
	all[r.nth].nth = r.nth
	all[last] = nil
	if e.processes[pid] = all[:last]; last == 0 {
		delete(e.processes, pid)
		delete(e.unranked, pid)
		return
	}
	e.unranked[pid] = true
}

// SetBusy reports that a queue has work, or has none any more.
func (e *Engine) SetBusy(now model.Time, id model.QueueID, busy bool) {
	e.setBusy(now, id, busy, 0, 0)
}

// SetIdle reports that a queue has no work any more, and for how long its program
// submitted before it waited for the rest; 0: unknown; model.NotWaited: no thread
// waited.
func (e *Engine) SetIdle(now model.Time, id model.QueueID, fed time.Duration) {
	e.setBusy(now, id, false, fed, 0)
}

// SetIdleAfter is SetIdle for a wait whose length, tail, is known exactly.
func (e *Engine) SetIdleAfter(now model.Time, id model.QueueID, fed, tail time.Duration) {
	e.setBusy(now, id, false, fed, max(1, tail))
}

func (e *Engine) setBusy(now model.Time, id model.QueueID, busy bool, fed, tail time.Duration) {
	r := e.queues[id]
	if r == nil {
		return
	}
	d, q := r.dev, r.dev.queue(r)
	if q.Busy == busy {
		return
	}
	if r.parked != nil {
		d.unpark(r)
		q = d.queue(r)
	}
	if d.size() == 1 {
		fed = 0 // changes of a queue that is alone may be left out: learn nothing from them
	}
	e.protect(now, r, busy, fed)
	r.segment(now, q, busy, fed, tail)
	q.Busy, q.ChangedAt = busy, now
	if !busy {
		r.setWaits(now, false)
	}
	e.saw(Event{Kind: EventBusy, At: now, ID: id, On: busy, Length: fed, Tail: tail})
	d.mark()
	d.unsettled = append(d.unsettled, r)
	if s := d.service(q.PID); s != nil {
		s.Work(now, busy)
	}
	if hasWork(q) {
		d.startWait(now, r)
	}
	if r.gang == nil {
		q.Ready = hasWork(q)
	} else if !e.regrouping {
		r.gang.lead.mark()
	}
}

// MarkRequest reports that a request of a process begins or ends, for its latency
// target. From the first mark on only marks count; before it, busy periods do.
func (e *Engine) MarkRequest(now model.Time, pid int, begin bool) {
	e.saw(Event{Kind: EventMark, At: now, PID: pid, On: begin})
	for _, d := range e.devicesOf(pid) {
		if s := d.service(pid); s != nil {
			d.epoch++
			s.Mark(now, begin, d.epoch)
			d.mark()
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
	if d := e.device(id); d != nil && d.view.Unmanaged != unmanaged {
		d.view.Unmanaged = unmanaged
		d.mark()
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

// SetLevel changes the level in force of one queue, the best one that its device
// supports, and whether it has slices.
func (e *Engine) SetLevel(now model.Time, id model.QueueID, level, best model.Level, slices bool) {
	if r := e.queues[id]; r != nil {
		e.saw(Event{Kind: EventLevel, At: now, ID: id, Level: level, Best: best, On: slices})
		q := r.dev.queue(r)
		if q.Level == level && q.Best == best && r.slices == slices {
			return
		}
		q.Level, q.Best, r.slices = level, best, slices
		if r.parked == nil {
			r.dev.restructure()
		} else {
			r.dev.mark()
			r.dev.resend = append(r.dev.resend, r)
		}
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
	e.unranked[r.dev.queue(r).PID] = true
	return true
}

// edit changes the queues of a process.
func (e *Engine) edit(now model.Time, pid int, change func(*model.Queue)) int {
	for _, r := range e.processes[pid] {
		e.change(now, r, change)
	}
	if len(e.processes[pid]) > 0 {
		e.unranked[pid] = true
	}
	return len(e.processes[pid])
}

// change changes one queue.
func (e *Engine) change(now model.Time, r *record, change func(*model.Queue)) {
	q := r.dev.queue(r)
	had, hint, held := hasWork(q), r.hint, q.Held
	set := func() {
		q.Hint = r.hint
		change(&q.Queue)
		r.hint = q.Hint
		r.restrict()
	}
	if r.parked == nil {
		if set(); r.hint == hint && q.Held == held {
			return
		}
		r.dev.restructure()
	} else {
		r.dev.countTarget(q, -1)
		set()
		r.dev.countTarget(q, 1)
		if !parkable(now, q) {
			r.dev.unpark(r)
			q = r.dev.queue(r)
		}
	}
	e.regrouping, e.anyGang = true, e.anyGang || q.Hint.Gang != ""
	if hasWork(q) && !had {
		r.dev.startWait(now, r)
	}
}

// rankAll ranks the processes that changed. One decision ranks a process once, however many of its
// queues changed.
func (e *Engine) rankAll() {
	for pid := range e.unranked {
		e.rank(pid)
	}
	clear(e.unranked)
}

// rank sets the rank of the queues of a process, as the policy sees it.
func (e *Engine) rank(pid int) {
	top := model.PriorityNever
	for _, r := range e.processes[pid] {
		top = max(top, r.hint.Priority)
	}
	for _, r := range e.processes[pid] {
		q := r.dev.queue(r)
		all := q.Queue
		all.Hint = r.hint
		if rank := r.dev.policy.Rank(&all, top); rank != q.Claim {
			if q.Claim = rank; r.parked == nil {
				r.dev.restructure()
			}
		}
	}
}

// Decide asks the policy about every device on which something happened or is
// due. It returns what must change since the last call, and the latest time of
// the next one. The slice is reused by the next call.
func (e *Engine) Decide(now model.Time) ([]model.Desired, model.Time) {
	e.changes = e.changes[:0]
	e.rankAll()
	e.regroup()
	wake := e.agenda.each(now, func(d *device) {
		e.decideDevice(now, d)
		if e.anyGang {
			e.lead(now, d)
		}
	})
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
