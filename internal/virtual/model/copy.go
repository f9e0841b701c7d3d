// SPDX-License-Identifier: Apache-2.0

package gpumodel

import (
	"time"

	"xsched/internal/model"
)

// copyEngine moves data beside the compute engine, one copy at a time. A copy is at
// the head of a compute channel (so it keeps its place in the stream) and needs a
// channel of the copy group that does it.
type copyEngine struct {
	queue  []*Channel // in turn; queue[0] is on when active
	active bool
	moved  time.Duration // of the slice
	late   bool          // its time is over, its data is still being moved
}

// lane is the channel that does the copy at the head of c; nil: none is needed.
func (c *Channel) lane() *Channel {
	w := c.head()
	if w == nil || w.Lane >= len(c.lanes) || w.Lane < 0 {
		return nil
	}
	group := c.lanes[w.Lane]
	if len(group.channels) == 0 {
		return nil
	}
	return group.channels[c.index%len(group.channels)]
}

// allowed says that the copy at the head of c may go on.
func (c *Channel) allowed() bool {
	lane := c.lane()
	return lane == nil || lane.enabled && lane.group.scheduled
}

func (e *copyEngine) add(g *GPU, c *Channel) {
	w := c.head()
	w.Duration = time.Duration(w.Bytes * int64(time.Second) / g.costs.CopyBytesPerSecond)
	w.Duration = max(w.Duration, g.costs.CopyLatency)
	e.queue = append(e.queue, c)
	e.next()
}

// next puts the first allowed copy on the engine.
func (e *copyEngine) next() {
	if e.active {
		return
	}
	for i, c := range e.queue {
		if !c.allowed() {
			continue
		}
		copy(e.queue[1:i+1], e.queue[:i])
		e.queue[0] = c
		e.active, e.moved = true, 0
		if w := c.head(); !w.started {
			w.started = true
			c.sink.CopyStart(w)
		}
		return
	}
}

func (e *copyEngine) slice() time.Duration {
	if lane := e.queue[0].lane(); lane != nil {
		return lane.group.slice
	}
	return time.Millisecond
}

// contested says that another copy could use the engine.
func (e *copyEngine) contested() bool {
	for _, c := range e.queue[1:] {
		if c.allowed() {
			return true
		}
	}
	return false
}

func (e *copyEngine) when(now model.Time) model.Time {
	if !e.active || e.late {
		return model.Never
	}
	left := e.queue[0].head().remaining()
	if e.contested() {
		left = min(left, max(0, e.slice()-e.moved))
	}
	return now.Add(left)
}

func (e *copyEngine) elapse(d time.Duration) {
	if e.active && !e.late {
		e.queue[0].head().progress += d
		e.moved += d
	}
}

func (e *copyEngine) handle(g *GPU) {
	if !e.active || e.late {
		return
	}
	c := e.queue[0]
	w := c.head()
	switch {
	case w.remaining() <= 0:
		if !c.sink.CopyReady(w) {
			e.late = true
			return
		}
		e.finish(g)
	case e.contested() && e.moved >= e.slice():
		e.rotate()
	}
}

// finish completes the copy that is on.
func (e *copyEngine) finish(g *GPU) {
	c := e.queue[0]
	e.drop(0)
	c.copying = false
	g.totals.Copies++
	c.group.account.Copies++
	g.complete(c)
	e.next()
}

// rotate moves the copy that is on behind the others.
func (e *copyEngine) rotate() {
	c := e.queue[0]
	e.drop(0)
	e.queue = append(e.queue, c)
	e.next()
}

// drop takes one channel out of the queue; if it was on, the engine is free.
func (e *copyEngine) drop(i int) {
	if i == 0 && e.active {
		e.active, e.late = false, false
	}
	e.queue = append(e.queue[:i], e.queue[i+1:]...)
}

// check follows a change of what is allowed.
func (e *copyEngine) check() {
	if e.active && !e.late && !e.queue[0].allowed() {
		e.active = false // it keeps its progress and its place
	}
	e.next()
}

// remove forgets the copy at the head of c.
func (e *copyEngine) remove(c *Channel) {
	for i, other := range e.queue {
		if other == c {
			e.drop(i)
			e.next()
			return
		}
	}
}

// CopyFinished is called when data that CopyReady found unfinished has been moved.
func (g *GPU) CopyFinished(c *Channel) {
	if e := &g.copies; e.late && e.queue[0] == c {
		e.finish(g)
	}
}
