// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"xsched/internal/gpumodel"
	"xsched/internal/model"
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
	r.wants = hardware{slice: d.Slice}
	if level >= model.LevelDeactivate {
		r.wants.suspend = level
	}
	if r.doing || r.called || r.wants == r.has {
		return false
	}
	r.called = true
	c.timers.push(at, timerWork, r.inst)
	return true
}

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
	switch want := r.wants; {
	case want.suspend != r.has.suspend:
		r.doing = true
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
