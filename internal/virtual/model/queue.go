// SPDX-License-Identifier: Apache-2.0

package gpumodel

import (
	"slices"
	"time"

	"xsched/internal/model"
)

// WorkKind is the type of a Work.
type WorkKind uint8

// Kinds of work.
const (
	WorkKernel WorkKind = iota + 1 // compute engine, for Duration
	WorkCopy                       // copy engine, Bytes from Src to Dst
	WorkFill                       // copy engine, Bytes at Dst
	WorkWait                       // until On has completed OnSeq
	WorkMark                       // no operation: completes when reached
	WorkValue                      // until the word at Dst is at least Seed, counted modulo 2^32
)

// Work is one entry of a channel. The exported fields are the submitter's.
type Work struct {
	Kind     WorkKind
	Seq      uint64
	Duration time.Duration
	Bytes    int64
	Dst, Src uint64
	Seed     uint32 // kernel's argument, or the value of a fill
	Width    uint32 // of a fill: 1, 2 or 4 bytes
	Lane     int    // index of the copy group, or LaneCompute
	On       *Channel
	OnSeq    uint64

	submitted model.Time
	progress  time.Duration
	done      int  // blocks executed
	started   bool // of a copy: CopyStart was called
}

// LaneCompute is the lane of a small copy that the driver sends through the compute channel: the compute engine
// executes it, as a kernel. Sink.Done moves its bytes.
const LaneCompute = laneCount

// computes reports whether the compute engine executes the work.
func (w *Work) computes() bool {
	return w.Kind == WorkKernel || w.Kind == WorkCopy && w.Lane == LaneCompute
}

func (w *Work) remaining() time.Duration { return w.Duration - w.progress }

// blocks returns the number of blocks of a kernel; the last may be short.
func (w *Work) blocks(block time.Duration) int {
	return max(1, int((w.Duration+block-1)/block))
}

// Sink receives what the device executed and applies the effects to memory.
type Sink interface {
	// Blocks: blocks [from, to) of a kernel were executed.
	Blocks(w *Work, from, to int)
	// CopyStart: a copy or fill begins. It may move the data in the background.
	CopyStart(w *Work)
	// CopyReady: its time has elapsed; false delays completion until CopyFinished.
	CopyReady(w *Work) bool
	// Reached: the word that a WorkValue waits for has its value.
	Reached(w *Work) bool
	// Done: the work completed, in order, at a simulated time. w is reused afterwards.
	Done(w *Work, at model.Time)
}

// Channel is a FIFO of work.
type Channel struct {
	group    *Group
	lanes    []*Group // the copy groups of the same context
	index    int      // in its group
	enabled  bool
	disables int  // in force
	parked   bool // left the engine without a slice and was not rescheduled
	sink     Sink

	queue     []*Work
	completed uint64 // Seq of the last completed work
	waiting   []*Channel
	copying   bool // its head is at the copy engine
	removed   bool
}

// Group is a channel group (TSG), the unit of context switches.
type Group struct {
	account   *Account
	channels  []*Channel
	slice     time.Duration
	copy      bool
	scheduled bool
	ready     bool
	removed   bool
	current   *Channel // whose kernel executes, or did when the group was preempted
}

// Channels returns the group's channels in order of creation.
func (group *Group) Channels() []*Channel { return group.channels }

// Copies reports whether the group uses the copy engine.
func (group *Group) Copies() bool { return group.copy }

// Enabled reports whether the channel is not disabled.
func (c *Channel) Enabled() bool { return c.enabled }

// Group returns the channel's group.
func (c *Channel) Group() *Group { return c.group }

// AddGroup creates a group; it is not scheduled yet.
func (g *GPU) AddGroup(account *Account, copyGroup bool) *Group {
	group := &Group{account: account, copy: copyGroup, slice: g.costs.ComputeSlice}
	if copyGroup {
		group.slice = g.costs.CopySlice
		return group
	}
	g.runlist = append(g.runlist, group)
	account.SliceNS = int64(group.slice)
	return group
}

// Groups returns the number of compute groups.
func (g *GPU) Groups() int { return len(g.runlist) }

// Schedule lets a group run.
func (g *GPU) Schedule(group *Group) {
	group.scheduled = true
	for _, c := range group.channels {
		g.pump(c)
	}
	g.refresh(group)
}

// RemoveGroup removes a group and its channels and drops their work.
func (g *GPU) RemoveGroup(group *Group) {
	if group.removed {
		return
	}
	for len(group.channels) > 0 {
		g.RemoveChannel(group.channels[0])
	}
	group.removed = true
	g.refresh(group)
	if group.copy {
		return
	}
	index := g.indexOf(group)
	g.runlist = append(g.runlist[:index], g.runlist[index+1:]...)
	if index <= g.position {
		g.position--
	}
	if g.owner == group && g.phase == phaseIdle {
		g.owner = nil
	}
}

// RemoveChannel removes a channel and drops its work. Channels that wait for it continue.
func (g *GPU) RemoveChannel(c *Channel) {
	if c.removed {
		return
	}
	running := g.phase == phaseRun && g.owner == c.group && c.group.current == c
	mid := running && c.group.mid()
	if !c.enabled {
		c.group.account.Stopped--
	}
	c.removed, c.enabled = true, false
	g.copies.remove(c)
	c.queue = nil
	if c.group.current == c {
		c.group.current = nil
	}
	group := c.group
	group.channels = append(group.channels[:c.index], group.channels[c.index+1:]...)
	for i, other := range group.channels {
		other.index = i
	}
	g.release(c)
	g.refresh(group)
	if running {
		g.change(g.next(), mid)
		if g.phase == phaseIdle {
			g.wake()
		}
	}
}

// AddChannel adds a channel to a group. lanes are the context's copy groups; they
// may be set later with SetLanes.
func (g *GPU) AddChannel(group *Group, sink Sink) *Channel {
	c := &Channel{group: group, sink: sink, enabled: true, index: len(group.channels)}
	group.channels = append(group.channels, c)
	return c
}

// SetLanes sets the copy groups for the copies of c.
func (c *Channel) SetLanes(lanes []*Group) { c.lanes = lanes }

// SetSink sets the receiver of effects.
func (c *Channel) SetSink(sink Sink) { c.sink = sink }

// Pending returns the amount of incomplete work.
func (c *Channel) Pending() int { return len(c.queue) }

// Submit appends work to c. Preconditions: simulated up to the time of submission.
func (g *GPU) Submit(c *Channel, work Work) {
	if c.removed {
		return
	}
	w := g.take()
	*w = work
	w.progress, w.done, w.started, w.submitted = 0, 0, false, g.now
	c.queue = append(c.queue, w)
	if len(c.queue) == 1 {
		g.pump(c)
		g.refresh(c.group)
	}
}

func (g *GPU) take() *Work {
	if n := len(g.freed); n > 0 {
		w := g.freed[n-1]
		g.freed = g.freed[:n-1]
		return w
	}
	return new(Work)
}

// head returns the oldest work of c, or nil.
func (c *Channel) head() *Work {
	if len(c.queue) == 0 {
		return nil
	}
	return c.queue[0]
}

// ready reports whether c has work for the compute engine and may execute it.
func (c *Channel) ready() bool {
	return c.enabled && len(c.queue) > 0 && c.queue[0].computes()
}

// pump completes work at the head of c that needs no engine, and queues copies. A copy runs in a
// channel of a copy group, so that a disabled compute channel does not stop it.
func (g *GPU) pump(c *Channel) {
	for c.group.scheduled && len(c.queue) > 0 && !c.copying {
		w := c.queue[0]
		if !c.enabled && (w.Kind != WorkCopy && w.Kind != WorkFill || c.lane() == nil) {
			return
		}
		switch w.Kind {
		case WorkKernel:
			return
		case WorkCopy, WorkFill:
			if w.computes() {
				w.Duration = max(At(w.Bytes, g.costs.CopyBytesPerSecond), g.costs.CopyLatency)
				return
			}
			c.copying = true
			g.copies.of(w).add(g, c)
			return
		case WorkWait:
			if on := w.On; on != nil && !on.removed && on.completed < w.OnSeq {
				if slices.Contains(on.waiting, c) {
					return
				}
				on.waiting = append(on.waiting, c)
				return
			}
		case WorkMark:
		case WorkValue:
			if !c.sink.Reached(w) {
				if !slices.Contains(g.valued, c) {
					g.valued = append(g.valued, c)
				}
				return
			}
		}
		g.finish(c)
	}
}

// finish completes the head of c.
func (g *GPU) finish(c *Channel) {
	w := c.queue[0]
	n := copy(c.queue, c.queue[1:])
	c.queue[n] = nil
	c.queue = c.queue[:n]
	c.completed = w.Seq
	c.sink.Done(w, g.now)
	*w = Work{}
	if len(g.freed) < 4096 {
		g.freed = append(g.freed, w)
	}
	g.release(c)
}

// complete finishes work that an engine executed and pumps what follows.
func (g *GPU) complete(c *Channel) {
	g.finish(c)
	g.pump(c)
	g.refresh(c.group)
}

// WaitsForValue reports whether a channel waits for a value in memory.
func (g *GPU) WaitsForValue() bool { return len(g.valued) > 0 }

// Stored continues the channels whose value has been stored. A store in host memory rings no doorbell: the
// hardware polls. Preconditions: simulated up to the time of the store.
func (g *GPU) Stored() {
	waiting := g.valued
	g.valued = nil
	for _, c := range waiting {
		if !c.removed {
			g.pump(c)
			g.refresh(c.group)
		}
	}
}

// release pumps the channels that wait for c.
func (g *GPU) release(c *Channel) {
	waiting := c.waiting
	c.waiting = nil
	for _, other := range waiting {
		g.pump(other)
		g.refresh(other.group)
	}
}

// mid reports whether the group is in mid-kernel, executing or preempted.
func (group *Group) mid() bool {
	c := group.current
	if c == nil {
		return false
	}
	w := c.head()
	return w != nil && w.computes() && w.progress > 0
}

// pick returns the group's next ready channel in round-robin order.
func (group *Group) pick() *Channel {
	start := 0
	if group.current != nil {
		start = group.current.index + 1
	}
	for i := range group.channels {
		if c := group.channels[(start+i)%len(group.channels)]; c.ready() {
			return c
		}
	}
	return nil
}
