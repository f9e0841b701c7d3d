// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// This file models the daemon's device side. The gate changes immediately. One worker per process
// and device calls the driver, with one operation in flight; the newest desired state wins. Workers
// that begin the same operation by one decision make one call.

// desire sets the desired state of a rank and reports whether its worker has to be scheduled.
func (r *rank) desire(d *model.Desired, at model.Time) bool {
	if !r.joined {
		return false
	}
	c := r.inst.cell
	level := d.Suspend
	if most := model.Level(c.plan.scenario.GPU.Level); level > most {
		level = most // a forced level that the device lacks falls back to the gate
	}
	was := r.gate
	r.gate = gate{closed: level == model.LevelBlock, limit: d.InFlight, gather: d.Gather}
	if r.gate != was && len(r.held) > 0 {
		r.drain()
	}
	stopped := r.wants.suspend != 0
	r.leaveJoint()
	r.wants = hardware{slice: d.Slice}
	if level >= model.LevelDeactivate {
		r.wants.suspend = level
	}
	r.answered() // of the previous desired state
	r.after = 0
	switch {
	case r.wants.suspend != 0:
		r.wait()
	case stopped:
		r.resuming = true
		c.resuming = append(c.resuming, r)
	}
	if r.doing || r.called || r.wants == r.has {
		return false
	}
	if r.after > 0 {
		return false // the ranks it waits for will call it
	}
	r.called = true
	c.timers.Push(at, timer{timerWork, r.inst})
	if r.wants.suspend != r.has.suspend && r.wants.suspend != model.LevelDeactivate && r.has.suspend != model.LevelDeactivate {
		c.joints = append(c.joints, r)
	}
	return true
}

// joint is one call that suspends or resumes several ranks of a device, as one decision wanted.
type joint struct {
	missing int // members whose worker has not come yet
	ready   []*rank
}

// join lets the ranks that begin the same operation on the same device make one call.
func (c *cell) join() {
	for i, r := range c.joints {
		for _, first := range c.joints[:i] {
			if first.gpu != r.gpu || first.wants.suspend != r.wants.suspend {
				continue
			}
			if first.joint == nil {
				first.joint = &joint{missing: 1}
			}
			r.joint = first.joint
			r.joint.missing++
			break
		}
	}
	c.joints = c.joints[:0]
}

// leaveJoint lets the others go on without a rank whose desired state changed.
func (r *rank) leaveJoint() {
	j := r.joint
	if r.joint = nil; j == nil {
		return
	}
	if j.missing--; j.missing == 0 {
		j.call()
	}
}

// call makes the call of all members that came.
func (j *joint) call() {
	if len(j.ready) == 0 {
		return
	}
	first := j.ready[0]
	c, stop := first.inst.cell, first.has.suspend != 0
	var channels []*gpumodel.Channel
	for _, r := range j.ready {
		channels = append(channels, r.channel)
	}
	c.device(first).Disable(channels, stop, false, func(model.Time) {
		for _, r := range j.ready {
			c.events++
			r.work()
		}
	})
}

// afterMax bounds how long an operation waits for its predecessors.
const afterMax = 2 * time.Millisecond

// wait orders a suspend after the resumes of the same decision on its device.
func (r *rank) wait() {
	c := r.inst.cell
	for _, o := range c.resuming {
		if o.gpu == r.gpu && o != r && o.wants != o.has {
			o.waiters = append(o.waiters, r)
			r.after++
		}
	}
	if r.after > 0 {
		r.hurry = c.now.Add(afterMax)
		c.timers.Push(r.hurry, timer{timerHurry, r.inst})
	}
}

// answered releases the ranks that wait for this one.
func (r *rank) answered() {
	c := r.inst.cell
	for _, o := range r.waiters {
		if o.after == 0 {
			continue // its desired state has changed
		}
		if o.after--; o.after == 0 && !o.doing && !o.called && o.wants != o.has {
			o.called = true
			c.timers.Push(c.now.Add(c.plan.dispatch.draw(c.random)), timer{timerWork, o.inst})
		}
	}
	r.waiters = r.waiters[:0]
}

// goOnSure is the daemon's sequence to resume a channel that left at the end of its slice: enable
// twice, disable, enable. Otherwise a lone channel would not return. True is a disable.
var goOnSure = []bool{false, false, true, false}

// work requests the next difference from the driver. Suspends precede timeslices, because another
// rank waits for them.
func (r *rank) work() {
	c := r.inst.cell
	r.doing, r.called = false, false
	if !r.joined {
		return
	}
	replied := func(model.Time) {
		c.events++
		r.work()
	}
	if len(r.steps) > 0 { // remaining steps of a resume
		stop := r.steps[0]
		r.steps = r.steps[1:]
		r.doing = true
		c.device(r).Disable([]*gpumodel.Channel{r.channel}, stop, false, replied)
		return
	}
	switch want := r.wants; {
	case want.suspend != r.has.suspend:
		r.doing = true
		if want.suspend == 0 && r.has.suspend == model.LevelDeactivate {
			r.steps = goOnSure[1:]
		}
		r.has.suspend = want.suspend
		if j := r.joint; j != nil {
			r.joint = nil
			j.ready = append(j.ready, r)
			if j.missing--; j.missing == 0 {
				j.call()
			}
			return
		}
		c.device(r).Disable([]*gpumodel.Channel{r.channel}, want.suspend != 0, want.suspend == model.LevelDeactivate, replied)
	case want.slice != r.has.slice:
		r.doing = true
		r.has.slice = want.slice
		slice := want.slice
		if slice == 0 {
			slice = c.plan.costs.ComputeSlice
		}
		c.device(r).SetSlice(r.group, slice, replied)
	default:
		r.answered()
	}
}

// device returns the rank's device, advanced to now. During a reply the device is already there.
func (c *cell) device(r *rank) *gpumodel.GPU {
	g := c.gpus[r.gpu]
	if g.Now() < c.now {
		g.Advance(c.now)
	}
	c.stale[r.gpu] = true
	return g
}
