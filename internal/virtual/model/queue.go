// SPDX-License-Identifier: Apache-2.0

package gpumodel

import (
	"slices"
	"time"

	"xsched/internal/model"
)

// WorkKind says what one entry of a channel is.
type WorkKind uint8

// What a channel can be given.
const (
	WorkKernel WorkKind = iota + 1 // compute engine, for Duration
	WorkCopy                       // copy engine, Bytes from Src to Dst
	WorkFill                       // copy engine, Bytes at Dst
	WorkWait                       // until On has completed OnSeq
	WorkMark                       // nothing: completes as soon as it is reached
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
	Lane     int    // which of the copy groups does a copy
	On       *Channel
	OnSeq    uint64

	submitted model.Time
	progress  time.Duration
	done      int  // blocks executed
	started   bool // of a copy: CopyStart was called
}

func (w *Work) remaining() time.Duration { return w.Duration - w.progress }

// blocks is how many blocks a kernel has; the last one may be short.
func (w *Work) blocks(block time.Duration) int {
	return max(1, int((w.Duration+block-1)/block))
}

// Sink is told what the device did; it carries out the effects in memory.
type Sink interface {
	// Blocks: blocks [from, to) of a kernel were executed.
	Blocks(w *Work, from, to int)
	// CopyStart: a copy or fill begins. It may move the data in the background.
	CopyStart(w *Work)
	// CopyReady: its time is over; false delays its completion until CopyFinished.
	CopyReady(w *Work) bool
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
	parked   bool // left the engine for want of a slice, and nobody put it back
	sink     Sink

	queue     []*Work
	completed uint64 // Seq of the last completed work
	waiting   []*Channel
	copying   bool // its head is with the copy engine
	removed   bool
}

// Group is a channel group (TSG): what the engine switches between.
type Group struct {
	account   *Account
	channels  []*Channel
	slice     time.Duration
	copy      bool
	scheduled bool
	ready     bool
	removed   bool
	current   *Channel // whose kernel is on, or was when the group was stopped
}

// Channels are the group's, in the order of their creation.
func (group *Group) Channels() []*Channel { return group.channels }

// Copies says that the group works on the copy engine.
func (group *Group) Copies() bool { return group.copy }

// Enabled says that the channel is not stopped.
func (c *Channel) Enabled() bool { return c.enabled }

// Group is the one the channel belongs to.
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

// Groups is how many compute groups there are.
func (g *GPU) Groups() int { return len(g.runlist) }

// Schedule lets a group run.
func (g *GPU) Schedule(group *Group) {
	group.scheduled = true
	for _, c := range group.channels {
		g.pump(c)
	}
	g.refresh(group)
}

// RemoveGroup takes a group and its channels off the device; their work is dropped.
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

// RemoveChannel takes a channel off the device; its work is dropped. Whoever waits
// for it goes on.
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

// SetLanes says which copy groups do the copies of c.
func (c *Channel) SetLanes(lanes []*Group) { c.lanes = lanes }

// SetSink says who carries out the effects.
func (c *Channel) SetSink(sink Sink) { c.sink = sink }

// Pending is how much work is not completed.
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

// head is the oldest work of c; nil if there is none.
func (c *Channel) head() *Work {
	if len(c.queue) == 0 {
		return nil
	}
	return c.queue[0]
}

// ready says that c has a kernel to execute and may.
func (c *Channel) ready() bool {
	return c.enabled && len(c.queue) > 0 && c.queue[0].Kind == WorkKernel
}

// pump does what needs no engine at the head of c, and hands copies on.
func (g *GPU) pump(c *Channel) {
	for c.enabled && c.group.scheduled && len(c.queue) > 0 && !c.copying {
		w := c.queue[0]
		switch w.Kind {
		case WorkKernel:
			return
		case WorkCopy, WorkFill:
			c.copying = true
			g.copies.add(g, c)
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

// complete is finish for work that an engine did, and goes on with what is behind it.
func (g *GPU) complete(c *Channel) {
	g.finish(c)
	g.pump(c)
	g.refresh(c.group)
}

// release looks again at the channels that wait for c.
func (g *GPU) release(c *Channel) {
	waiting := c.waiting
	c.waiting = nil
	for _, other := range waiting {
		g.pump(other)
		g.refresh(other.group)
	}
}

// mid says that the group is, or was stopped, in the middle of a kernel.
func (group *Group) mid() bool {
	c := group.current
	if c == nil {
		return false
	}
	w := c.head()
	return w != nil && w.Kind == WorkKernel && w.progress > 0
}

// pick is the next channel of the group with a kernel, in turn.
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
