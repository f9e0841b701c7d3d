// SPDX-License-Identifier: Apache-2.0

package gpumodel

import (
	"slices"
	"time"

	"xsched/internal/model"
)

// Costs are the device's measured properties.
type Costs struct {
	ComputeSlice time.Duration // the driver's own timeslices
	CopySlice    time.Duration
	MidSwitch    time.Duration // a switch from or to a kernel stopped in the middle
	Switch       time.Duration // any other one
	Block        time.Duration // granularity of a kernel's progress; 0: not reported

	CopyBytesPerSecond   int64 // to the device or from it; each direction has its own engine
	InsideBytesPerSecond int64 // inside the device; 0: CopyBytesPerSecond
	CopyLatency          time.Duration
	// CopySlowdown is the part of a kernel's speed that a copy at the same time takes, 0 to 0.9:
	// both use the memory.
	CopySlowdown float64
	// PinBytesPerSecond is how fast host memory becomes ready for copies.
	PinBytesPerSecond int64

	Suspend, Resume, SetSlice RPC
}

// RPC is the latency of a request to the device's firmware.
type RPC struct {
	Reply, ReplyPerChannel   time.Duration // until the caller gets its reply
	ReplyPreempt             time.Duration // more, if the request preempts a running kernel
	Effect, EffectPerChannel time.Duration // until the device acts on it
}

func (r RPC) reply(channels int, preempts bool) time.Duration {
	d := r.Reply + time.Duration(channels)*r.ReplyPerChannel
	if preempts {
		d += r.ReplyPreempt
	}
	return d
}

func (r RPC) effect(channels int) time.Duration {
	return r.Effect + time.Duration(channels)*r.EffectPerChannel
}

// DefaultCosts returns the values measured on an H200. The reply to a suspend takes 0.53 ms for 8
// channels and 0.76 ms for 20, to a resume 0.21 and 0.32 ms. The effect precedes the reply: after a
// suspend, a waiting kernel of 0.09 ms completes within 0.486 ms, including the context switch.
func DefaultCosts() Costs {
	const us = time.Microsecond
	return Costs{
		ComputeSlice: 2048 * us, CopySlice: 1024 * us,
		MidSwitch: 200 * us, Switch: 5 * us, Block: 10 * us,
		CopyBytesPerSecond: 25e9, CopyLatency: 2 * us,
		Suspend: RPC{
			Reply: 377 * us, ReplyPerChannel: 19150,
			Effect: 185 * us, EffectPerChannel: 1200,
		},
		Resume: RPC{
			Reply: 137 * us, ReplyPerChannel: 9150,
			Effect: 110 * us, EffectPerChannel: 9150,
		},
		SetSlice: RPC{Reply: 50 * us},
	}
}

// RemoteCosts returns DefaultCosts with the replies that another process gets, as the daemon does:
// 0.66 ms for the suspend of one busy process with 8 channels, 0.74 ms for two in one request, 0.33
// and 0.39 ms for their resume. A request has a fixed part, preempting a running kernel and each
// channel add to it, and the number of processes does not matter. Pinned host memory is copied with 55 GB/s in
// each direction, and pinned with 8.1 GB/s where its pages are huge; both were measured on an H200.
func RemoteCosts() Costs {
	const us = time.Microsecond
	c := DefaultCosts()
	c.Suspend.Reply, c.Suspend.ReplyPerChannel, c.Suspend.ReplyPreempt = 400*us, 10*us, 180*us
	c.Resume.Reply, c.Resume.ReplyPerChannel = 270*us, 8*us
	c.CopyBytesPerSecond, c.InsideBytesPerSecond, c.PinBytesPerSecond = 55e9, 2000e9, 8.1e9
	return c
}

// Faults inject misbehavior, so that tests can prove they would detect it.
type Faults struct {
	SuspendNoop      bool         // FIFO_DISABLE_CHANNELS returns NV_OK without effect
	TimesliceIgnored bool         // SET_TIMESLICE returns NV_OK without effect
	LoseBlock        bool         // a preempted kernel loses a block
	NeverAnswer      map[int]bool // controls on files of these processes are never answered
	Refuse           map[int]bool // changes that these processes ask for fail
	OwnClients       bool         // FIFO_DISABLE_CHANNELS refuses clients of other files than its own
	NoMemory         map[int]bool // allocations on these GPUs fail
	MapFails         map[int]bool // these processes can map no memory
	SlowCopies       int          // copies take this many times as long; 0: as usual
	Hung             map[int]bool // these GPUs, from 0, neither run nor answer until the faults are cleared
	Steps            []*StepFault
}

// StepFault makes a step with memory fail, or slow.
type StepFault struct {
	Op    uint32        // in the terms of the driver
	PID   int           // whose; 0: anybody's
	After int           // how many pass before
	Every bool          // all behind these; else only one
	Slow  time.Duration // it takes so much longer; 0: it fails
}

// Step takes note of a step of a process. It returns whether the step fails, and how much longer it takes.
func (f *Faults) Step(op uint32, pid int) (fails bool, slower time.Duration) {
	for _, s := range f.Steps {
		if s.Op != op || s.PID != 0 && s.PID != pid {
			continue
		}
		s.After--
		if s.After == -1 || s.After < -1 && s.Every {
			fails = fails || s.Slow == 0
			slower += s.Slow
		}
	}
	return fails, slower
}

// Disable stops or resumes channels like FIFO_DISABLE_CHANNELS. The effect follows the firmware's
// latency; replied is called when the caller gets its reply. With onlyScheduling the running slice
// ends normally.
//
// As on an H200, disables are counted and enabling an enabled channel has no effect. A group that
// left by onlyScheduling while no other was runnable returns only after a full disable and enable.
func (g *GPU) Disable(channels []*Channel, disable, onlyScheduling bool, replied func(model.Time)) {
	cost, preempts := g.costs.Resume, false
	if disable {
		cost = g.costs.Suspend
		preempts = !onlyScheduling && slices.ContainsFunc(channels, g.executes)
	}
	g.rpc(cost, cost.reply(len(channels), preempts), len(channels), func() {
		if g.faults.SuspendNoop {
			return
		}
		for _, c := range channels {
			if c.removed {
				continue
			}
			switch {
			case !disable:
				c.disables = max(0, c.disables-1)
			case onlyScheduling:
				c.disables++
				c.parked = c.parked || g.phase == phaseRun && g.owner == c.group && g.runnable <= 1
			default:
				c.disables++
				c.parked = false
			}
			g.enable(c, c.disables == 0 && !c.parked)
		}
		if g.phase == phaseRun && disable && !onlyScheduling && !g.owner.current.enabled {
			g.leave()
		}
		g.copies.check()
	}, replied)
}

// executes reports whether a kernel of the channel's group is on the engine.
func (g *GPU) executes(c *Channel) bool { return g.phase == phaseRun && g.owner == c.group }

func (g *GPU) enable(c *Channel, on bool) {
	if c.enabled == on {
		return
	}
	c.enabled = on
	if on {
		c.group.account.Stopped--
		g.pump(c)
	} else {
		c.group.account.Stopped++
	}
	g.refresh(c.group)
}

// SetSlice sets a group's timeslice, including that of a running slice.
func (g *GPU) SetSlice(group *Group, slice time.Duration, replied func(model.Time)) {
	g.rpc(g.costs.SetSlice, g.costs.SetSlice.reply(0, false), 0, func() {
		group.account.Timeslices++
		if !g.faults.TimesliceIgnored {
			group.slice = slice
		}
		if !group.copy {
			group.account.SliceNS = int64(group.slice)
		}
	}, replied)
}

// Slice returns the group's timeslice.
func (g *GPU) Slice(group *Group) time.Duration { return group.slice }

// Preempt ends the running slice of a group.
func (g *GPU) Preempt(group *Group) {
	if g.phase == phaseRun && g.owner == group && g.contested() {
		g.leave()
	}
}

// After calls do at a simulated time.
func (g *GPU) After(d time.Duration, do func(model.Time)) { g.events.Push(g.now.Add(d), do) }

// rpc sends a request to the firmware, which serves one at a time.
func (g *GPU) rpc(cost RPC, reply time.Duration, channels int, effect func(), replied func(model.Time)) {
	g.totals.Requests++
	start := max(g.now, g.rpcFree)
	g.rpcFree = start.Add(reply)
	g.events.Push(start.Add(cost.effect(channels)), func(model.Time) { effect() })
	if replied != nil {
		g.events.Push(g.rpcFree, replied)
	}
}
