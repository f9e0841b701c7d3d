// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// device is the queues of one device: they compete with each other only.
type device struct {
	id      model.DeviceID
	view    policy.View
	records []*record  // beside view.Queues
	applied model.Plan // the verdicts in force
	long    policy.Set // slices of which others starve
	tiny    policy.Set // slices that need to be alone
	next    policy.Set // scratch of account
	flips   []*record  // queues that became busy or idle since the last decision
	// round is the slices of all that had a chance since the clocks were last brought up to date.
	round time.Duration
	wake  model.Time
	dirty bool // something happened since the last decision
	moved bool // the sets must be rebuilt and every desired state compared
	// unsorted: the queues are not in order; only while moved.
	unsorted bool
}

func newDevice(id model.DeviceID) *device { return &device{id: id, wake: model.Never} }

// restructure asks for a rebuild at the next decision. Until then the queues
// and the records know what the clocks knew.
func (d *device) restructure() {
	d.flush()
	d.dirty, d.moved = true, true
}

// flush writes the clocks back, if they are newer.
func (d *device) flush() {
	if d.moved {
		return
	}
	d.view.Flush()
	for i, r := range d.records {
		c := &d.view.Clocks[i]
		r.flip, r.credit, r.v0, r.chance = c.Flip, c.Credit, c.V0, d.view.Chance.Has(i)
	}
}

// startWait begins the wait of a queue that became ready.
func (d *device) startWait(now model.Time, r *record) {
	if d.moved {
		d.view.Queues[r.index].WaitSince, r.credit = now, 0
	} else {
		d.view.Clocks[r.index].Wait, d.view.Clocks[r.index].Credit = now, 0
		d.view.Rekey(r.index)
	}
}

// readyChanged follows a change of a queue's work.
func (d *device) readyChanged(now model.Time, r *record) {
	d.dirty = true
	q := &d.view.Queues[r.index]
	if len(d.view.Services) > 0 {
		d.view.Worked(now, q.PID, q.Busy)
	}
	if q.Ready() {
		d.startWait(now, r)
	}
	if !d.moved {
		d.view.Ready.Put(r.index, q.Ready())
		d.view.Rekey(r.index)
		d.flips = append(d.flips, r)
	}
}

// insert and remove leave the order for the next decision: many queues come
// and go at the same time.
func (d *device) insert(q model.Queue, r *record) {
	d.restructure()
	r.index = len(d.records)
	d.view.Queues, d.records, d.unsorted = append(d.view.Queues, q), append(d.records, r), true
}

func (d *device) remove(at int) {
	d.restructure()
	last := len(d.records) - 1
	d.view.Queues[at], d.records[at] = d.view.Queues[last], d.records[last]
	d.records[at].index = at
	d.records[last] = nil
	d.view.Queues, d.records, d.unsorted = d.view.Queues[:last], d.records[:last], true
}

// reorder puts the queues in order.
func (d *device) reorder() {
	if !d.unsorted {
		return
	}
	d.unsorted = false
	queues := slices.Clone(d.view.Queues)
	slices.SortFunc(d.records, func(a, b *record) int {
		return policy.Before(&queues[a.index], &queues[b.index])
	})
	for i, r := range d.records {
		d.view.Queues[i] = queues[r.index]
		r.index = i
	}
}

// rebuild brings sets and verdicts in line with the queues and the mode.
func (d *device) rebuild(cfg *Config) {
	d.reorder()
	v := &d.view
	n := len(v.Queues)
	v.Knobs = cfg.knobs()
	v.CanSuspend = cfg.Mode != model.ModeTimeslice
	d.next, d.long, d.tiny = d.next.Reset(n), d.long.Reset(n), d.tiny.Reset(n)
	d.applied = slices.Grow(d.applied[:0], n)[:n]
	top := d.top()
	for i, r := range d.records {
		q := &v.Queues[i]
		switch cfg.Mode {
		case model.ModeTimeslice:
			q.Slices = r.slices
		case model.ModeLive:
			// Who asked for Lv1 asked for the gate and nothing else, but that is about being
			// stopped: the highest may have a slice all the same.
			q.Slices = r.slices && (q.Level != model.LevelBlock || q.Rank == top)
		default:
			q.Slices = false
		}
	}
	v.Rebuild()
	for i, r := range d.records {
		d.inForce(i, r.verdict)
		c := &v.Clocks[i]
		if r.chance {
			v.Begin(i)
		}
		c.Flip, c.Credit, c.V0 = r.flip, r.credit, r.v0
		v.Rekey(i)
	}
	if cfg.Mode == model.ModeOff {
		// Priorities say nothing now; what was done by hand holds in every mode.
		for i := range v.Queues {
			v.Eligible.Put(i, !v.Queues[i].Held)
		}
	}
	d.group(cfg)
	for i, r := range d.records {
		if v.Ready.Has(i) && !r.chance {
			v.Wait(i)
		}
	}
}

// top is the highest rank of a queue that may run.
func (d *device) top() model.Priority {
	for i := range d.view.Queues {
		if q := &d.view.Queues[i]; !q.Held {
			return q.Rank
		}
	}
	return model.PriorityNever
}

// decideDevice asks the policy about one device and notes the changes.
func (e *Engine) decideDevice(now model.Time, d *device) {
	v, moved := &d.view, d.moved
	v.Advance(now) // with who had a chance till now
	if moved {
		d.rebuild(&e.cfg)
	}
	d.dirty, d.moved = false, false
	e.account(now, d) // so that the policy sees times up to now
	e.stats.Decisions++

	var plan model.Plan
	if e.cfg.Mode == model.ModeOff {
		plan, d.wake = v.Base(policy.Span{End: len(v.Queues), Verdict: model.Verdict{Run: true}}), model.Never
	} else {
		plan, d.wake = e.policy.Decide(now, v)
	}
	changed := false
	for _, r := range v.Touched() {
		for i := r.From; i < r.End; i++ {
			if plan[i] != d.applied[i] || moved {
				changed = true
				e.apply(now, d, i, plan)
			}
		}
	}
	for _, r := range d.flips {
		if !moved { // else all were compared
			e.send(r, plan[r.index])
		}
	}
	d.flips = d.flips[:0]
	if changed {
		e.account(now, d)
	}
	if e.cfg.Mode != model.ModeOff {
		d.wake = min(d.wake, max(v.StarvesAt(), now+1))
	}
}

// apply puts the plan's verdict for one queue in force.
func (e *Engine) apply(now model.Time, d *device, i int, plan model.Plan) {
	v, r := &d.view, d.records[i]
	q := &v.Queues[i]
	d.inForce(i, plan[i])
	want := e.desired(q, plan[i])
	if run := plan[i].Run; run != q.Running {
		q.Running = run
		v.Running.Put(i, run)
		switch {
		case run && v.GoesOn(i): // the pause is taken off its turn when it has a chance again
		case run:
			v.Clocks[i].Run, v.Clocks[i].Flip = now, now
		case v.Ready.Has(i):
			e.stats.Preemptions[want.Suspend]++
			r.state.Preemptions[want.Suspend]++
			d.blame(r, v.Ready, plan)
		}
	}
	e.send(r, plan[i])
}

// send asks for what a verdict means for a queue now, if that is not what it has.
func (e *Engine) send(r *record, verdict model.Verdict) {
	if want := e.desired(&r.dev.view.Queues[r.index], verdict); want != r.sent {
		r.sent = want
		e.changes = append(e.changes, want)
	}
}

// inForce notes a verdict and what kind of slice it has.
func (d *device) inForce(i int, verdict model.Verdict) {
	d.applied[i], d.records[i].verdict = verdict, verdict
	d.long.Put(i, verdict.Slice >= policy.LongSlice)
	d.tiny.Put(i, verdict.Slice != 0 && verdict.Slice < policy.UsefulSlice)
	d.view.SetSlice(i, verdict.Slice)
}

// desired is a verdict in the terms of a device.
func (e *Engine) desired(q *model.Queue, verdict model.Verdict) model.Desired {
	want := model.Desired{Queue: q.ID, Slice: verdict.Slice}
	level := q.Level
	if e.cfg.Mode == model.ModeLevel {
		level = e.cfg.ForceLevel
	}
	if level == model.LevelAuto {
		level = model.LevelBlock // unresolved: what every queue can do
	}
	switch {
	case verdict.Run:
	case q.Busy || q.Held || q.Guessed || level == model.LevelBlock:
		want.Suspend = level
	default:
		// What looks idle may have work of the driver's own: a context being made, a module being
		// loaded. Stopped in that it would never have work of which we know, so its turn would
		// never come; and two with tiny slices would keep each other from it.
		want.Slice = 0
		if q.Level == model.LevelBlock {
			want.Suspend = model.LevelBlock // a level forced on what has only the gate: open, it lets every first launch through
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

// blame notes for whom a queue had to leave: the first ready one that runs.
func (d *device) blame(r *record, ready policy.Set, plan model.Plan) {
	r.state.PreemptedBy = 0
	for j := ready.Next(0); j >= 0; j = ready.Next(j + 1) {
		if j != r.index && plan[j].Run {
			r.state.PreemptedBy = d.view.Queues[j].PID
			d.records[j].state.Caused++
			return
		}
	}
}
