// SPDX-License-Identifier: Apache-2.0

package gpumodel

import (
	"math"
	"math/bits"
	"time"

	"xsched/internal/model"
)

// Directions of copies, which are also the lanes of a context. Each has an engine of its own: copies to the
// device, from it and inside it run at the same time.
const (
	laneInside = 2
	laneCount  = 3
)

// copyEngines are the engines of a device by direction.
type copyEngines [laneCount]copyEngine

// of returns the engine of a work.
func (e *copyEngines) of(w *Work) *copyEngine { return &e[min(max(w.Lane, 0), laneCount-1)] }

// busy reports whether a copy moves bytes now.
func (e *copyEngines) busy() bool {
	for i := range e {
		if e[i].active && !e[i].late {
			return true
		}
	}
	return false
}

func (e *copyEngines) when(now model.Time) model.Time {
	next := model.Never
	for i := range e {
		next = min(next, e[i].when(now))
	}
	return next
}

func (e *copyEngines) elapse(d time.Duration) {
	for i := range e {
		e[i].elapse(d)
	}
}

func (e *copyEngines) handle(g *GPU) {
	for i := range e {
		e[i].handle(g)
	}
}

func (e *copyEngines) check() {
	for i := range e {
		e[i].check()
	}
}

func (e *copyEngines) remove(c *Channel) {
	for i := range e {
		e[i].remove(c)
	}
}

// copyEngine executes one copy at a time, in parallel with the compute engine. A copy stays at the
// head of its compute channel, which preserves stream order, and needs a channel of a copy group.
type copyEngine struct {
	queue  []*Channel // round-robin; queue[0] executes if active
	active bool
	moved  time.Duration // of the slice
	late   bool          // its time has elapsed but the data is not moved yet
}

// lane returns the copy channel for the copy at the head of c; nil if none is needed.
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

// allowed reports whether the copy at the head of c may proceed.
func (c *Channel) allowed() bool {
	lane := c.lane()
	return lane == nil || lane.enabled && lane.group.scheduled
}

func (e *copyEngine) add(g *GPU, c *Channel) {
	w := c.head()
	rate := g.costs.CopyBytesPerSecond
	if w.Lane == laneInside && g.costs.InsideBytesPerSecond > 0 {
		rate = g.costs.InsideBytesPerSecond
	}
	w.Duration = At(w.Bytes, rate)
	w.Duration = max(w.Duration, g.costs.CopyLatency) * time.Duration(max(1, g.faults.SlowCopies))
	e.queue = append(e.queue, c)
	e.next()
}

// At returns how long bytes take at a rate.
func At(bytes, perSecond int64) time.Duration {
	hi, lo := bits.Mul64(uint64(max(bytes, 0)), uint64(time.Second))
	if hi >= uint64(perSecond) {
		return math.MaxInt64
	}
	ns, _ := bits.Div64(hi, lo, uint64(perSecond))
	return time.Duration(min(ns, math.MaxInt64))
}

// next starts the first allowed copy.
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

// contested reports whether another copy could use the engine.
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

// finish completes the executing copy.
func (e *copyEngine) finish(g *GPU) {
	c := e.queue[0]
	e.drop(0)
	c.copying = false
	g.totals.Copies++
	c.group.account.Copies++
	g.complete(c)
	e.next()
}

// rotate moves the executing copy to the end of the queue.
func (e *copyEngine) rotate() {
	c := e.queue[0]
	e.drop(0)
	e.queue = append(e.queue, c)
	e.next()
}

// drop removes a channel from the queue and frees the engine if the channel occupied it.
func (e *copyEngine) drop(i int) {
	if i == 0 && e.active {
		e.active, e.late = false, false
	}
	e.queue = append(e.queue[:i], e.queue[i+1:]...)
}

// check re-evaluates which copies may run.
func (e *copyEngine) check() {
	if e.active && !e.late && !e.queue[0].allowed() {
		e.active = false // keeps its progress and position
	}
	e.next()
}

// remove discards the copy at the head of c.
func (e *copyEngine) remove(c *Channel) {
	for i, other := range e.queue {
		if other == c {
			e.drop(i)
			e.next()
			return
		}
	}
}

// CopyFinished reports that a copy whose CopyReady returned false has completed.
func (g *GPU) CopyFinished(c *Channel) {
	for i := range g.copies {
		if e := &g.copies[i]; e.late && e.queue[0] == c {
			e.finish(g)
			return
		}
	}
}
