// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// device is the queues of one device: they compete only with each other.
type device struct {
	id      model.DeviceID
	view    policy.View
	state   *policy.State // of the policy in force
	records []*record     // beside view.Queues
	// busyChanged are the queues that became busy or idle since the last decision.
	busyChanged []*record

	accounted model.Time    // GPU time is charged up to here
	round     time.Duration // slices of all queues that progress
	wake      model.Time

	pending bool // something happened since the last decision
	// stale means that queues were added, removed or changed, so their order,
	// processes, services and groups must be rebuilt before the next decision.
	stale bool
	epoch uint64 // the last one given to a service
}

// restructure requests a rebuild at the next decision, because many queues may
// change at the same time.
func (d *device) restructure() { d.pending, d.stale = true, true }

func (d *device) queue(r *record) *policy.Queue { return &d.view.Queues[r.index] }

func (d *device) insert(q model.Queue, r *record) {
	d.restructure()
	r.index = len(d.records)
	// A queue runs until a verdict says otherwise: nothing has suspended it.
	d.view.Queues = append(d.view.Queues, policy.Queue{Queue: q, Verdict: model.Verdict{Run: true}, Group: -1})
	d.records = append(d.records, r)
}

func (d *device) remove(now model.Time, at int) {
	d.account(now)
	d.restructure()
	if q := &d.view.Queues[at]; q.Progressing {
		d.round -= q.Slice
	}
	last := len(d.records) - 1
	d.view.Queues[at], d.records[at] = d.view.Queues[last], d.records[last]
	d.records[at].index = at
	d.records[last] = nil
	d.view.Queues, d.records = d.view.Queues[:last], d.records[:last]
}

// sort puts the queues in order.
func (d *device) sort() {
	queues := slices.Clone(d.view.Queues)
	slices.SortFunc(d.records, func(a, b *record) int {
		return policy.Before(&queues[a.index].Queue, &queues[b.index].Queue)
	})
	for i, r := range d.records {
		d.view.Queues[i] = queues[r.index]
		r.index = i
	}
}

// rebuild recomputes everything that depends on the set of queues and their hints.
func (d *device) rebuild(cfg *Config) {
	d.stale = false
	d.sort()
	v := &d.view
	v.Processes = 0
	pids := make(map[int]int, len(v.Queues))
	for i := range v.Queues {
		q := &v.Queues[i]
		process, known := pids[q.PID]
		if !known || q.PID <= 0 { // without a PID, nothing is known about its siblings
			process = v.Processes
			pids[q.PID] = process
			v.Processes++
		}
		q.Process = process
	}
	d.findServices()
	d.findGroups(cfg)
}

// findServices tracks the processes that have a latency target.
func (d *device) findServices() {
	v := &d.view
	targets, busy := map[int]model.SLO{}, map[int]int{}
	for i := range v.Queues {
		q := &v.Queues[i]
		targets[q.PID] = q.Hint.SLO
		if q.Busy {
			busy[q.PID]++
		}
	}
	v.Services = slices.DeleteFunc(v.Services, func(s *policy.Service) bool { return !targets[s.PID].Said() })
	for i := range v.Queues {
		if q := &v.Queues[i]; q.Hint.SLO.Said() && d.service(q.PID) == nil {
			d.epoch++
			v.Services = append(v.Services, policy.NewService(q.PID, q.Hint.SLO, d.epoch))
		}
	}
	for _, s := range v.Services {
		if target := targets[s.PID]; target.Said() && target != s.Target {
			d.epoch++
			s.Retarget(target, d.epoch)
		}
		s.SetBusy(busy[s.PID])
	}
}

func (d *device) service(pid int) *policy.Service {
	for _, s := range d.view.Services {
		if s.PID == pid {
			return s
		}
	}
	return nil
}

// refresh brings the view in line with the queues, the mode and the gangs.
func (d *device) refresh(now model.Time, cfg *Config) {
	v := &d.view
	v.Knobs, v.CanSuspend = cfg.Knobs, cfg.Mode != model.ModeTimeslice
	top := d.top()
	for i, r := range d.records {
		q := &v.Queues[i]
		switch cfg.Mode {
		case model.ModeTimeslice:
			q.Slices = r.slices
		case model.ModeLive:
			// Lv1 queues get no timeslice, except at the highest rank: the level
			// limits how a queue is suspended, and that one never is.
			q.Slices = r.slices && (q.Level != model.LevelBlock || q.Rank == top)
		default:
			q.Slices = false
		}
		q.Admitted = q.Eligible() || cfg.Mode == model.ModeOff && !q.Held // priorities mean nothing in mode off
		if r.gang == nil || cfg.Mode == model.ModeOff {
			q.Ready = hasWork(q)
		}
	}
	for k := range v.Groups {
		if g := d.records[v.Groups[k].Members[0]].gang; g != nil {
			v.Groups[k].Run = g.run
			d.admit(now, g, cfg)
		}
	}
}

// hasWork reports that a queue could use the GPU now.
func hasWork(q *policy.Queue) bool { return q.Queue.Ready() }

// top is the highest rank of a queue that is not suspended by hand.
func (d *device) top() model.Priority {
	for i := range d.view.Queues {
		if q := &d.view.Queues[i]; !q.Held {
			return q.Rank
		}
	}
	return model.PriorityNever
}

// decideDevice asks the policy about one device and puts its plan in force.
func (e *Engine) decideDevice(now model.Time, d *device) {
	v, all := &d.view, d.stale
	d.account(now)
	if d.stale {
		d.rebuild(&e.cfg)
	}
	d.refresh(now, &e.cfg)
	d.pending = false
	e.updateProgress(now, d) // accounts for changes by applications
	e.stats.Decisions++

	var plan model.Plan
	d.wake = model.Never
	if e.cfg.Mode == model.ModeOff {
		plan = make(model.Plan, len(v.Queues))
		for i := range plan {
			plan[i].Run = v.Queues[i].Admitted
		}
	} else {
		plan, d.wake = e.policy.Decide(now, v, d.state)
	}
	for _, s := range v.Services {
		s.Finished = nil
	}
	// Comparing desired states costs a third of a decision at 1,000 queues: do it
	// only where something changed.
	changed := false
	for i := range plan {
		if plan[i] != v.Queues[i].Verdict {
			changed = true
			e.apply(d, i, plan)
		} else if all {
			e.send(d.records[i], plan[i])
		}
	}
	for _, r := range d.busyChanged {
		if !all {
			e.send(r, plan[r.index])
		}
	}
	d.busyChanged = d.busyChanged[:0]
	if changed {
		e.updateProgress(now, d) // accounts for changes by the plan
	}
	if e.cfg.Mode != model.ModeOff {
		d.wake = min(d.wake, max(d.state.StarvesAt(v), now+1))
	}
}

// apply puts the plan's verdict for one queue in force.
func (e *Engine) apply(d *device, i int, plan model.Plan) {
	q, r := &d.view.Queues[i], d.records[i]
	e.send(r, plan[i])
	q.Verdict = plan[i]
	if q.Running == plan[i].Run {
		return
	}
	if q.Running = plan[i].Run; q.Running {
		q.ActiveAtStart = q.Active
	} else if q.Ready {
		e.stats.Preemptions[r.sent.Suspend]++
		r.state.Preemptions[r.sent.Suspend]++
		d.attribute(r, func(j int) bool { return plan[j].Run })
	}
}

// send reports what a verdict means for a queue now, if that is new.
func (e *Engine) send(r *record, verdict model.Verdict) {
	if want := e.desired(&r.dev.queue(r).Queue, verdict); want != r.sent {
		r.sent = want
		e.changes = append(e.changes, want)
	}
}

// attribute records in whose favour a queue was preempted: the first ready queue
// that runs.
func (d *device) attribute(r *record, runs func(j int) bool) {
	r.state.PreemptedBy = 0
	for j := range d.view.Queues {
		if q := &d.view.Queues[j]; j != r.index && q.Ready && runs(j) {
			r.state.PreemptedBy = q.PID
			d.records[j].state.Caused++
			return
		}
	}
}

// desired translates a verdict into the terms of a device.
func (e *Engine) desired(q *model.Queue, verdict model.Verdict) model.Desired {
	want := model.Desired{Queue: q.ID, Slice: verdict.Slice}
	level := q.Level
	if e.cfg.Mode == model.ModeLevel {
		level = e.cfg.ForceLevel
	}
	if level == model.LevelAuto {
		level = model.LevelBlock // unresolved: every queue supports this one
	}
	switch {
	case verdict.Run:
	case q.Busy || q.Held || q.Guessed || level == model.LevelBlock:
		want.Suspend = level
	default:
		// An idle queue may have work of the driver's own, such as context creation
		// or module loading. Suspended in that, it would never report work, and its
		// turn would never come. Two with tiny slices would block each other.
		want.Slice = 0
		if q.Level == model.LevelBlock {
			want.Suspend = model.LevelBlock // a forced level on a queue that has only the gate: hold its first launch too
		}
	}
	if verdict.Limit && level == model.LevelBlock {
		want.InFlight, want.Batch = q.Hint.InFlight, q.Hint.Batch
		if want.InFlight == 0 {
			want.InFlight = e.cfg.InFlight
		}
		if want.Batch == 0 {
			want.Batch = min(e.cfg.Batch, want.InFlight)
		}
	}
	return want
}
