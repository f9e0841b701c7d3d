// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// This file is the model of the daemon's device side: the gate changes at once, the
// driver is asked by one worker for each process on a device, with one
// operation in flight, and the newest wish wins.

// desire takes over the engine's wish for a rank, and has its worker start at a time if it is
// needed; true: it is.
func (r *rank) desire(d *model.Desired, at model.Time) bool {
	if !r.joined {
		return false
	}
	c := r.inst.cell
	level := d.Suspend
	if most := model.Level(c.plan.scenario.GPU.Level); level > most {
		level = most // a level that a mode forces on a device that can't is done by the gate
	}
	was := r.gate
	r.gate = gate{closed: level == model.LevelBlock, limit: d.InFlight}
	if r.gate != was && len(r.held) > 0 {
		r.drain()
	}
	stopped := r.wants.suspend != 0
	r.wants = hardware{slice: d.Slice}
	if level >= model.LevelDeactivate {
		r.wants.suspend = level
	}
	r.answered() // of what was wanted before
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
		return false // whoever it waits for calls it
	}
	r.called = true
	c.timers.Push(at, timer{timerWork, r.inst})
	return true
}

// afterMax is how long an operation waits for those that shall come before it.
const afterMax = 2 * time.Millisecond

// wait has a stop come after the resumes of the same decision on its device.
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

// answered lets those go on that waited for this one's wish.
func (r *rank) answered() {
	c := r.inst.cell
	for _, o := range r.waiters {
		if o.after == 0 {
			continue // it wants something else by now
		}
		if o.after--; o.after == 0 && !o.doing && !o.called && o.wants != o.has {
			o.called = true
			c.timers.Push(c.now.Add(c.plan.dispatch.draw(c.random)), timer{timerWork, o.inst})
		}
	}
	r.waiters = r.waiters[:0]
}

// goOnSure is how the daemon lets a channel go that left at the end of its slice: enabled twice, stopped and enabled
// again, because with nobody else on the chip it would not come back. True stops.
var goOnSure = []bool{false, false, true, false}

// work asks the driver for the next thing that differs: stopping comes before slices,
// somebody waits for it.
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
	if len(r.steps) > 0 { // of a letting go that takes several
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

// device is the rank's, up to now. A reply comes in the middle of the device's own
// work, which is at now already.
func (c *cell) device(r *rank) *gpumodel.GPU {
	g := c.gpus[r.gpu]
	if g.Now() < c.now {
		g.Advance(c.now)
	}
	c.stale[r.gpu] = true
	return g
}
