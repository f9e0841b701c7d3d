// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// device is the queues of one device: they compete only with each other.
type device struct {
	id      model.DeviceID
	cfg     Config // in force here
	policy  *policy.Scheduler
	view    policy.View
	state   *policy.State // of the policy in force
	records []*record     // beside view.Queues
	// unsettled are the queues whose desired state may differ under the same verdict:
	// those that became busy, idle or contested since the last decision.
	unsettled []*record

	parked        []*record // not in the view; see park.go
	parkedTargets map[int]parkedTarget
	nextPark      model.Time
	grown         bool      // queues were added since idle ones were parked
	modeChanged   bool      // the parked queues need another state
	resend        []*record // those of them whose level changed

	copying     int                        // queues that only copy; see copying.go
	protections map[int]*policy.Protection // by PID; see protection.go
	blockers    []*policy.Protection       // that keep all lower queues from progressing
	blocked     bool                       // now

	accounted model.Time    // GPU time is charged up to here
	round     time.Duration // slices of all queues that progress

	agenda  *agenda
	pending bool       // in agenda.pending: something happened since the last decision
	fresh   bool       // in agenda.fresh
	place   int        // in the order of decisions; all are equal without gangs
	nth     int        // in agenda.wakes
	wake    model.Time // when the next decision is due at the latest
	check   model.Time // see setCheck

	capped bool // any queue has a cap
	// stale means that queues were added, removed or changed, so their order,
	// processes, services and groups must be rebuilt before the next decision.
	stale bool
	epoch uint64 // the last one given to a service
}

// restructure requests a rebuild at the next decision, because many queues may
// change at the same time.
func (d *device) restructure() {
	d.mark()
	d.stale = true
}

func (d *device) queue(r *record) *policy.Queue {
	if r.parked != nil {
		return r.parked
	}
	return &d.view.Queues[r.index]
}

func (d *device) insert(q model.Queue, r *record) {
	d.restructure()
	d.grown = true
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

// sort puts the queues in order, with the limits of their users applied.
func (d *device) sort() {
	d.capped = policy.CapRanks(d.view.Queues)
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
func (d *device) rebuild() {
	d.stale = false
	d.sort()
	v := &d.view
	if d.capped {
		policy.SetRivalled(v.Queues, func(i int) { d.records[i].restrict() })
	}
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
	d.findPools()
	d.forgetProtections(pids)
	d.findServices()
	d.findGroups()
}

// findServices tracks the processes that have a latency target.
func (d *device) findServices() {
	v := &d.view
	targets, busy, rivalled := make(map[int]model.SLO, len(d.parkedTargets)), map[int]int{}, map[int]bool{}
	for pid, t := range d.parkedTargets {
		targets[pid], rivalled[pid] = t.slo, t.capped
	}
	for i, r := range d.records {
		q := &v.Queues[i]
		targets[q.PID], rivalled[q.PID] = r.hint.SLO, rivalled[q.PID] || q.Rivalled
		if q.Busy {
			busy[q.PID]++
		}
	}
	services := slices.DeleteFunc(slices.Concat(v.Services, v.Overruled), func(s *policy.Service) bool { return !targets[s.PID].Said() })
	v.Services, v.Overruled = services, nil
	for i, r := range d.records {
		if pid := v.Queues[i].PID; r.hint.SLO.Said() && d.service(pid) == nil {
			d.epoch++
			v.Services = append(v.Services, policy.NewService(pid, r.hint.SLO, d.epoch))
		}
	}
	services, v.Services = v.Services, nil
	for _, s := range services {
		if target := targets[s.PID]; target.Said() && target != s.Target {
			d.epoch++
			s.Retarget(target, d.epoch)
		}
		s.SetBusy(busy[s.PID])
		// The division of the device outlasts the idle time of others, so a rival
		// counts even without work.
		if rivalled[s.PID] {
			v.Overruled = append(v.Overruled, s)
		} else {
			v.Services = append(v.Services, s)
		}
	}
}

func (d *device) service(pid int) *policy.Service {
	for _, all := range [][]*policy.Service{d.view.Services, d.view.Overruled} {
		for _, s := range all {
			if s.PID == pid {
				return s
			}
		}
	}
	return nil
}

// restrict puts in the view what counts of a queue's hint.
func (r *record) restrict() {
	q := r.dev.queue(r)
	if !r.hint.Cap.On {
		q.Rivalled, q.Contested = false, false
	}
	if q.Hint = r.hint; q.Rivalled {
		q.Hint = policy.Counted(&r.hint, q.Contested)
	}
}

// refresh brings the view in line with the queues, the mode and the gangs.
func (d *device) refresh(now model.Time) {
	v, cfg := &d.view, &d.cfg
	v.Knobs, v.CanSuspend = cfg.Knobs, cfg.Mode != model.ModeTimeslice
	v.LaunchBound = d.policy.Strategy()
	if d.capped {
		policy.SetContested(v.Queues, func(i int) {
			d.records[i].restrict()
			d.unsettled = append(d.unsettled, d.records[i]) // the level may differ
		})
	}
	top := d.top()
	check := model.Never
	d.findCopying(top)
	for i, r := range d.records {
		q := &v.Queues[i]
		if q.Feeding.CheckAt != 0 && q.Rank == top {
			check = min(check, q.Feeding.CheckAt)
		}
		switch cfg.Mode {
		case model.ModeTimeslice:
			q.Slices = r.slices
		case model.ModeLive:
			// Lv1 queues get no timeslice, except at the highest rank: the level
			// limits how a queue is suspended, and that one never is.
			q.Slices = r.slices && (q.Level != model.LevelBlock || q.Rank == top || q.Contested)
		default:
			q.Slices = false
		}
		q.Native = r.protection != nil && r.protection.Native
		q.Admitted = q.Eligible() && !q.Copying || cfg.Mode == model.ModeOff && !q.Held // priorities mean nothing in mode off
		if r.gang == nil || cfg.Mode == model.ModeOff {
			q.Ready = hasWork(q)
		}
	}
	d.setCheck(check)
	for k := range v.Groups {
		group := &v.Groups[k]
		g := d.records[group.Members[0]].gang
		if g == nil {
			continue
		}
		group.Run, group.Split = g.run, false
		for _, i := range group.Members {
			group.Split = group.Split || v.Queues[i].Contested
		}
		for _, i := range group.Members {
			if v.Queues[i].Group = k; group.Split {
				v.Queues[i].Group = -1
			}
		}
		d.admit(now, g, group.Split)
	}
}

// hasWork reports that a queue could use the GPU now.
func hasWork(q *policy.Queue) bool { return q.Queue.Ready() && !q.Copying }

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
	d.account(now)
	e.resendParked(d)
	e.parkIdle(now, d)
	v, all := &d.view, d.stale
	if d.stale {
		d.rebuild()
	}
	native := e.checkNative(now, d)
	d.refresh(now)
	d.pending = false
	e.updateProgress(now, d) // accounts for changes by applications
	e.stats.Decisions++

	var plan model.Plan
	d.wake = model.Never
	grants := d.state.Grants()
	if d.cfg.Mode == model.ModeOff {
		plan = make(model.Plan, len(v.Queues))
		for i := range plan {
			plan[i].Run = v.Queues[i].Admitted
		}
	} else {
		plan, d.wake = d.policy.Decide(now, v, d.state)
		d.wake = min(d.wake, native)
	}
	e.stats.Grants += d.state.Grants() - grants
	d.voidRequests()
	for _, all := range [][]*policy.Service{v.Services, v.Overruled} {
		for _, s := range all {
			s.Finished = nil
		}
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
	for _, r := range d.unsettled {
		if !all {
			e.send(r, plan[r.index])
		}
	}
	d.unsettled = d.unsettled[:0]
	if changed {
		e.updateProgress(now, d) // accounts for changes by the plan
	}
	e.watch(now, d)
	if d.cfg.Mode != model.ModeOff {
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
	if want := r.dev.cfg.desired(r.dev.queue(r), verdict); want != r.sent {
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
func (c *Config) desired(q *policy.Queue, verdict model.Verdict) model.Desired {
	want := model.Desired{Queue: q.ID, Slice: verdict.Slice}
	if verdict.Run {
		want.Gather = verdict.Gather
	}
	level := q.Level
	if q.Contested {
		level = max(level, q.Best) // another user does not wait for a chosen level
	}
	if c.Mode == model.ModeLevel {
		level = c.ForceLevel
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
		want.InFlight, want.Batch = cmp.Or(q.Hint.InFlight, c.InFlight), q.Hint.Batch
		if q.Hint.Cap.On { // launches in flight delay other users
			want.InFlight = min(want.InFlight, c.InFlight)
			want.Batch = min(want.Batch, want.InFlight)
		}
		if want.Batch == 0 {
			want.Batch = min(c.Batch, want.InFlight)
		}
	}
	return want
}
