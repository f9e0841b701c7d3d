// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"cmp"
	"context"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/model"
)

// dispatcher brings decisions to gates and workers.
type dispatcher struct {
	engine   *input
	registry *registry
	activity *activity

	lateGates []*queue // gates to open
	opened    int      // gates opened in this pass
	stopping  bool     // every gate is open; no more decisions

	// State of the decision in progress. Suspensions on a GPU wait for its resumptions.
	deciding       bool
	pendingUpdates []*Client        // clients whose workers are not yet updated
	estimated      []estimateChange // changes of estimated queues, reported to the engine afterwards
	batches        []batch          // suspensions and resumptions of the current decision
	resumed        map[model.DeviceID][]<-chan struct{}

	workerUpdates uint64 // number of times a worker's state was computed
}

// applyAll applies a decision, resumptions before suspensions. The driver serializes requests,
// so the opposite order would leave the GPU idle in between.
func (d *dispatcher) applyAll(now model.Time, changes []model.Desired) {
	d.deciding = true
	for _, stop := range []bool{false, true} {
		for i := range changes {
			if (changes[i].Suspend != 0) == stop {
				d.apply(now, changes[i])
			}
		}
		for i, c := range d.pendingUpdates {
			d.updateWorkers(c)
			d.pendingUpdates[i] = nil
		}
		d.pendingUpdates = d.pendingUpdates[:0]
		d.flush()
	}
	d.deciding = false
	clear(d.resumed)
}

// apply applies the desired state of one queue to its gate; applyAll updates the workers.
func (d *dispatcher) apply(now model.Time, desired model.Desired) {
	q := d.registry.queue(desired.Queue)
	if q == nil {
		return
	}
	c := q.owner
	if len(c.workers.changed) == 0 {
		d.pendingUpdates = append(d.pendingUpdates, c)
	}
	c.markChanged(q.device)
	was := q.want.Suspend != 0
	q.want = desired
	c.touch()
	if stop := desired.Suspend != 0; q.guessed() && stop != was {
		d.estimated = append(d.estimated, estimateChange{c, q, stop})
	} else {
		d.activity.suspended(now, c, q, was)
	}
	if q.gate != nil {
		d.setGate(q)
	}
}

// updateWorker combines the desired states of a client's queues on a device for its worker. The
// queues share the process's hardware queues, so the worker suspends only if all busy queues shall be
// suspended.
func (d *dispatcher) updateWorker(c *Client, gpu model.DeviceID) {
	if can, ok := c.caps[gpu]; !ok || can.MaxLevel <= model.LevelBlock {
		if _, ok := c.workers.sent[gpu]; !ok {
			return
		}
	}
	d.workerUpdates++
	want, any, anyBusy := model.Desired{}, false, false
	for _, q := range c.queues {
		if q.device != gpu || q.merge.primary != nil || anyBusy && !q.busy {
			continue
		}
		one := q.want
		if one.Suspend == model.LevelBlock {
			one.Suspend = 0
		}
		if !any || q.busy && !anyBusy {
			want, any, anyBusy = one, true, q.busy
			continue
		}
		want.Suspend = min(want.Suspend, one.Suspend)
		want.Slice = max(want.Slice, one.Slice)
	}
	// The index has no meaning for a worker, and the limits belong to the gate.
	want.Queue = model.QueueID{Session: c.ID}
	want.InFlight, want.Batch, want.Gather = 0, 0, 0
	if want == (model.Desired{Queue: want.Queue}) {
		if _, ok := c.workers.sent[gpu]; !ok {
			return // the worker has never been used
		}
	}
	if c.workers.sent[gpu] == want {
		return
	}
	if w := c.session.Worker(gpu); w != nil {
		stops, resumes := want.Suspend != 0, want.Suspend == 0 && c.workers.sent[gpu].Suspend != 0
		c.workers.sent[gpu] = want
		if d.deciding && (stops || resumes) {
			d.request(c, gpu, w, want)
		} else {
			w.Want(want)
		}
	}
}

// openAll opens every gate and ends scheduling.
func (d *dispatcher) openAll() {
	d.stopping = true
	for _, c := range d.registry.clients {
		for _, q := range c.queues {
			if q.gate != nil {
				_ = q.gate.Close()
			}
		}
	}
}

// updateWorkers updates the workers of the changed devices.
func (d *dispatcher) updateWorkers(c *Client) {
	for _, gpu := range c.workers.changed {
		d.updateWorker(c, gpu)
	}
	c.workers.changed = c.workers.changed[:0]
}

// setUnproved sets the gate of a queue that does not compete. A suspension by hand holds there too.
func (d *dispatcher) setUnproved(now model.Time, c *Client, q *queue) {
	was := q.want.Suspend != 0
	if q.want = (model.Desired{Queue: q.id}); c.stopped() && !c.memory.moving && !d.stopping {
		q.want.Suspend = model.LevelBlock
	}
	d.activity.suspended(now, c, q, was)
	if q.gate != nil {
		d.setGate(q)
	}
}

// batch is a set of workers that begin the same operation by one decision. They share one call of
// the driver where it can. Only programs of one user do: a call of several travels on the descriptor of
// one of them.
type batch struct {
	gpu      model.DeviceID
	user     identity.User
	level    model.Level // 0: resume
	requests []driver.Request
}

// request collects a suspension or resumption of the current decision.
func (d *dispatcher) request(c *Client, gpu model.DeviceID, w *driver.Worker, want model.Desired) {
	one := driver.Request{Worker: w, Want: want}
	if want.Suspend != 0 {
		one.After = d.resumed[gpu]
	}
	for i := range d.batches {
		if t := &d.batches[i]; t.gpu == gpu && t.level == want.Suspend && t.user == c.User {
			t.requests = append(t.requests, one)
			return
		}
	}
	d.batches = append(d.batches, batch{gpu, c.User, want.Suspend, []driver.Request{one}})
}

// flush passes the collected requests to the workers.
func (d *dispatcher) flush() {
	for _, t := range d.batches {
		tried := driver.WantAll(t.requests)
		if t.level == 0 {
			d.resumed[t.gpu] = append(d.resumed[t.gpu], tried...)
		}
	}
	clear(d.batches)
	d.batches = d.batches[:0]
}

// gateState returns the desired state of a queue's gate. The gate replaces missing hardware levels if
// a mode forces one level on all queues. A merged queue has the state of its primary queue; an idle one
// is held where the gate preempts it, so that its next launch waits until the loop knows about it.
func (d *dispatcher) gateState(q *queue) model.Desired {
	c, primary := q.owner, cmp.Or(q.merge.primary, q)
	want := primary.want
	if c.workers.off[q.device] != "" {
		return model.Desired{Queue: want.Queue}
	}
	if want.Suspend > model.LevelBlock && c.queueCapability(primary).MaxLevel < want.Suspend {
		want.Suspend = model.LevelBlock
	}
	if primary != q && !q.busy && primary.level == model.LevelBlock && !d.stopping {
		cfg := d.engine.Config()
		if on := cfg.On(q.device); on.Suspends() {
			want.Suspend = model.LevelBlock
		}
	}
	return want
}

// applyGate applies the desired state to the gate of a queue.
func (d *dispatcher) applyGate(q *queue) {
	_ = q.gate.Apply(context.Background(), d.gateState(q))
}

// setGate applies the desired state to the gate of a queue, and to those merged with it. Opening wakes
// the program by a system call, so a pass opens only some gates; the next ones open the others.
func (d *dispatcher) setGate(q *queue) {
	want := d.gateState(q)
	if want.Suspend != model.LevelBlock && q.gate.Held() {
		if d.opened >= openedAtOnce {
			if !q.late {
				q.late = true
				d.lateGates = append(d.lateGates, q)
			}
			return
		}
		d.opened++
	}
	_ = q.gate.Apply(context.Background(), want)
	for _, merged := range q.merge.members {
		if merged.busy {
			d.setGate(merged)
		}
	}
}

// openLate opens gates that earlier passes left.
func (d *dispatcher) openLate() {
	late := d.lateGates
	d.lateGates, d.opened = nil, 0
	for _, q := range late {
		if q.late = false; q.owner.queues[q.id.Index] == q { // otherwise its gate was opened when it left
			d.setGate(q)
		}
	}
}
