// SPDX-License-Identifier: Apache-2.0

// Package gpumodel models a GPU: a discrete-event simulation of a compute engine that is
// time-sliced between channel groups, with costs measured on an H200. Time is an argument and the
// package does no I/O: the virtual GPU drives it with the real clock, the simulator with a virtual one.
package gpumodel

import (
	"math"
	"time"

	"xsched/internal/model"
)

type phase uint8

const (
	phaseIdle   phase = iota // no group has work
	phaseRun                 // owner executes
	phaseSwitch              // a context switch to owner (nil: only saving); no progress
)

// GPU models one device: a compute engine time-sliced between channel groups, and
// copy engines. It is not safe for concurrent use.
type GPU struct {
	costs  Costs
	faults *Faults
	now    model.Time

	runlist  []*Group // compute groups in the order of their creation
	position int      // of the last owner
	runnable int      // groups with something to execute

	phase      phase
	owner      *Group // see phase; when idle, the group whose state is still loaded, or nil
	switchEnd  model.Time
	sliceStart model.Time

	copies  copyEngines
	valued  []*Channel // whose head waits for a value
	events  Agenda[func(model.Time)]
	rpcFree model.Time // when the firmware can take the next request

	timeline *Timeline
	started  func(account *Account, submitted, started model.Time)
	totals   Totals
	handled  uint64 // events
	freed    []*Work
}

// Totals is the device's time by use, and its counters.
type Totals struct {
	RunNS     int64  `json:"run_ns"`
	SwitchNS  int64  `json:"switch_ns"`
	IdleNS    int64  `json:"idle_ns"`
	Switches  uint64 `json:"switches"`
	MidKernel uint64 `json:"mid_kernel_preemptions"`
	Kernels   uint64 `json:"kernels"`
	Copies    uint64 `json:"copies"`
	Requests  uint64 `json:"requests"` // to the firmware: suspends, resumes, timeslices
}

// NewGPU returns a device that is idle at start. timeline and faults may be shared
// or nil.
func NewGPU(start model.Time, costs Costs, timeline *Timeline, faults *Faults) *GPU {
	if faults == nil {
		faults = &Faults{}
	}
	return &GPU{costs: costs, faults: faults, now: start, timeline: timeline}
}

// OnStart sets a function that is called when a kernel first executes.
func (g *GPU) OnStart(f func(account *Account, submitted, started model.Time)) { g.started = f }

// SetTimeline sets where spans are recorded; nil records nothing.
func (g *GPU) SetTimeline(l *Timeline) { g.timeline = l }

// Handled returns the number of simulated events.
func (g *GPU) Handled() uint64 { return g.handled }

// Now returns the time up to which the device was simulated.
func (g *GPU) Now() model.Time { return g.now }

// Totals returns the sums up to Now.
func (g *GPU) Totals() Totals { return g.totals }

// Advance simulates up to t; a time before Now does nothing.
func (g *GPU) Advance(t model.Time) {
	for {
		next := g.NextEvent()
		if next > t {
			break
		}
		g.elapse(next)
		g.handle()
	}
	if t > g.now {
		g.elapse(t)
	}
}

// NextEvent returns the time of the next internal event, or model.Never.
func (g *GPU) NextEvent() model.Time {
	next := g.events.When()
	switch g.phase {
	case phaseIdle:
	case phaseSwitch:
		next = min(next, g.switchEnd)
	case phaseRun:
		next = min(next, g.now.Add(g.needs(g.owner.current.head().remaining())))
		if g.contested() {
			next = min(next, g.sliceEnd())
		}
	}
	return max(g.now, min(next, g.copies.when(g.now)))
}

// contested reports whether the end of the slice matters: another group is runnable, or the owner
// may not continue.
func (g *GPU) contested() bool {
	if g.owner.ready && g.owner.current.enabled {
		return g.runnable > 1
	}
	return true
}

// sliceEnd returns the next end of a slice. A slice that ended without another runnable group was
// renewed.
func (g *GPU) sliceEnd() model.Time {
	slice := g.owner.slice
	n := (g.now.Sub(g.sliceStart) + slice - 1) / slice
	return g.sliceStart.Add(max(n, 1) * slice)
}

// elapse advances time to t. Preconditions: no event before t.
func (g *GPU) elapse(t model.Time) {
	d := t.Sub(g.now)
	if d <= 0 {
		return
	}
	switch g.phase {
	case phaseIdle:
		g.totals.IdleNS += int64(d)
		g.timeline.add(g.now, t, KindIdle, nil)
	case phaseSwitch:
		g.totals.SwitchNS += int64(d)
		var account *Account
		if g.owner != nil {
			account = g.owner.account
		}
		g.timeline.add(g.now, t, KindSwitch, account)
	case phaseRun:
		g.totals.RunNS += int64(d)
		g.owner.account.RunNS += int64(d)
		g.timeline.add(g.now, t, KindRun, g.owner.account)
		g.execute(g.owner.current, g.advances(d))
	}
	g.copies.elapse(d)
	g.now = t
}

// slowed reports whether a copy slows kernels down now.
func (g *GPU) slowed() bool { return g.costs.CopySlowdown > 0 && g.copies.busy() }

// needs returns the time that a kernel with so much left takes at the present speed.
func (g *GPU) needs(left time.Duration) time.Duration {
	if !g.slowed() || left <= 0 {
		return left
	}
	return time.Duration(math.Ceil(float64(left) / (1 - g.costs.CopySlowdown)))
}

// advances returns how much of a kernel executes in d at the present speed.
func (g *GPU) advances(d time.Duration) time.Duration {
	if !g.slowed() {
		return d
	}
	return time.Duration(math.Ceil(float64(d) * (1 - g.costs.CopySlowdown))) // at least 1 ns, so that it ends
}

// execute runs the kernel at the head of c for d.
func (g *GPU) execute(c *Channel, d time.Duration) {
	w := c.head()
	if w.progress == 0 {
		g.timeline.started(c.group.account, w.submitted, g.now)
		if g.started != nil {
			g.started(c.group.account, w.submitted, g.now)
		}
	}
	w.progress += d
	if g.costs.Block == 0 || w.Kind != WorkKernel {
		return
	}
	done := int(w.progress / g.costs.Block)
	if w.progress >= w.Duration {
		done = w.blocks(g.costs.Block)
	}
	if done > w.done {
		c.sink.Blocks(w, w.done, done)
		w.done = done
	}
}

// handle processes the events due at g.now.
func (g *GPU) handle() {
	g.handled++
	for g.events.When() <= g.now {
		g.events.Pop()(g.now)
	}
	g.copies.handle(g)
	switch g.phase {
	case phaseIdle:
	case phaseSwitch:
		if g.now >= g.switchEnd {
			g.arrive()
		}
	case phaseRun:
		if c := g.owner.current; c.head().remaining() <= 0 {
			if c.head().Kind == WorkKernel {
				g.totals.Kernels++
				g.owner.account.Kernels++
			} else {
				g.totals.Copies++
				g.owner.account.Copies++
			}
			g.complete(c)
			g.proceed()
		} else if g.contested() && g.now >= g.sliceEnd() {
			g.leave()
		}
	}
}

// proceed continues the owner's slice after a kernel ended, with the group's next ready channel.
// Without one the group yields the engine.
func (g *GPU) proceed() {
	if c := g.owner.pick(); c != nil {
		g.owner.current = c
		return
	}
	g.owner.current = nil
	g.leave()
}

// leave preempts the owner and selects the next group.
func (g *GPU) leave() {
	out := g.owner
	mid := out.mid()
	next := g.next()
	if next == out { // alone: no switch
		g.start(out)
		return
	}
	if mid {
		g.totals.MidKernel++
		out.account.Preemptions++
		if g.faults.LoseBlock && out.current != nil {
			out.current.head().done++ // the injected fault: this block is never executed
		}
	}
	g.change(next, mid)
}

// change starts a context switch to next; nil only saves. saved: the outgoing group was preempted
// in mid-kernel.
func (g *GPU) change(next *Group, saved bool) {
	cost := g.costs.Switch
	switch {
	case saved || next != nil && next.mid():
		cost = g.costs.MidSwitch
	case next == nil || next == g.owner:
		cost = 0
	}
	if next == nil && !saved {
		g.phase = phaseIdle // the state stays loaded
		return
	}
	g.owner = next
	if next != nil {
		g.position = g.indexOf(next)
	}
	if cost == 0 {
		g.start(next)
		return
	}
	g.totals.Switches++
	g.phase, g.switchEnd = phaseSwitch, g.now.Add(cost)
}

// arrive ends a switch.
func (g *GPU) arrive() {
	switch {
	case g.owner == nil:
		g.phase = phaseIdle
		g.wake()
	case g.owner.ready:
		g.start(g.owner)
	default: // lost its work or was suspended during the switch
		mid := g.owner.mid()
		g.change(g.next(), mid)
	}
}

// start begins a slice of the loaded group.
func (g *GPU) start(group *Group) {
	g.phase, g.owner, g.sliceStart = phaseRun, group, g.now
	if group.current == nil || !group.current.ready() {
		group.current = group.pick()
	}
}

// next returns the next runnable group in round-robin order, the last owner last.
func (g *GPU) next() *Group {
	if g.runnable == 0 {
		return nil
	}
	for i := 1; i <= len(g.runlist); i++ {
		if group := g.runlist[(g.position+i)%len(g.runlist)]; group.ready {
			return group
		}
	}
	return nil
}

// wake assigns an idle engine to a runnable group.
func (g *GPU) wake() {
	if g.phase == phaseIdle && g.runnable > 0 {
		g.change(g.next(), false)
	}
}

func (g *GPU) indexOf(group *Group) int {
	for i, other := range g.runlist {
		if other == group {
			return i
		}
	}
	return 0
}

// refresh updates whether a group is runnable.
func (g *GPU) refresh(group *Group) {
	ready := false
	if group.scheduled && !group.removed && !group.copy {
		for _, c := range group.channels {
			if c.ready() {
				ready = true
				break
			}
		}
	}
	if ready == group.ready {
		return
	}
	group.ready = ready
	if ready {
		g.runnable++
		g.wake()
	} else {
		g.runnable--
	}
}
