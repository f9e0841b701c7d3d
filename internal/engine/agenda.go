// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"container/heap"
	"slices"

	"xsched/internal/model"
)

// agenda knows which devices need a decision: those where something happened, and those whose
// wake-up is due. A decision about one device costs no time for the others, because a client can
// create devices.
type agenda struct {
	pending pendingHeap
	wakes   wakeHeap  // all devices
	checks  []*device // by ID: those whose check is not model.Never
	fresh   []*device // decided about since EachAlone was last called
	all     bool      // every device counts as pending for EachPending
}

// before orders decisions: the device that leads a gang before those that follow.
func before(a, b *device) bool {
	return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.id, b.id)) < 0
}

type pendingHeap []*device

func (h pendingHeap) Len() int           { return len(h) }
func (h pendingHeap) Less(i, j int) bool { return before(h[i], h[j]) }
func (h pendingHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *pendingHeap) Push(d any)        { *h = append(*h, d.(*device)) }
func (h *pendingHeap) Pop() any          { return popLast((*[]*device)(h)) }

type wakeHeap []*device

func (h wakeHeap) Len() int           { return len(h) }
func (h wakeHeap) Less(i, j int) bool { return h[i].wake < h[j].wake }
func (h wakeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].nth, h[j].nth = i, j
}

func (h *wakeHeap) Push(d any) {
	d.(*device).nth = len(*h)
	*h = append(*h, d.(*device))
}
func (h *wakeHeap) Pop() any { return popLast((*[]*device)(h)) }

func popLast(all *[]*device) *device {
	last := len(*all) - 1
	d := (*all)[last]
	(*all)[last] = nil
	*all = (*all)[:last]
	return d
}

// add makes a new device known.
func (a *agenda) add(d *device) {
	d.agenda, d.wake, d.check = a, model.Never, model.Never
	heap.Push(&a.wakes, d)
}

// remove forgets a device without queues.
func (a *agenda) remove(d *device) {
	heap.Remove(&a.wakes, d.nth)
	is := func(o *device) bool { return o == d }
	if d.pending {
		a.pending = slices.DeleteFunc(a.pending, is)
		heap.Init(&a.pending)
	}
	if d.fresh {
		a.fresh = slices.DeleteFunc(a.fresh, is)
	}
	d.setCheck(model.Never)
}

// mark requests a decision about a device.
func (d *device) mark() {
	if !d.pending {
		d.pending = true
		heap.Push(&d.agenda.pending, d)
	}
}

// setCheck sets when the progress of a program of the highest rank matters.
func (d *device) setCheck(at model.Time) {
	if was := d.check != model.Never; was != (at != model.Never) {
		n, _ := slices.BinarySearchFunc(d.agenda.checks, d.id, func(o *device, id model.DeviceID) int { return cmp.Compare(o.id, id) })
		if was {
			d.agenda.checks = slices.Delete(d.agenda.checks, n, n+1)
		} else {
			d.agenda.checks = slices.Insert(d.agenda.checks, n, d)
		}
	}
	d.check = at
}

// markDue marks the devices whose wake-up is due, from one in the heap on.
func (a *agenda) markDue(now model.Time, from int) {
	if from < len(a.wakes) && a.wakes[from].wake <= now {
		a.wakes[from].mark()
		a.markDue(now, 2*from+1)
		a.markDue(now, 2*from+2)
	}
}

// each calls decide for every device that needs it, in order, and once: a device that a later one
// marks waits for the next call. It returns the time of the next wake-up.
func (a *agenda) each(now model.Time, decide func(d *device)) model.Time {
	a.markDue(now, 0)
	heap.Init(&a.pending) // places may have changed
	a.all = false
	var last *device
	var late []*device
	for len(a.pending) > 0 {
		d := heap.Pop(&a.pending).(*device)
		if last != nil && !before(last, d) {
			late = append(late, d)
			continue
		}
		decide(d)
		heap.Fix(&a.wakes, d.nth)
		last = d
		if !d.fresh {
			d.fresh = true
			a.fresh = append(a.fresh, d)
		}
	}
	a.pending = append(a.pending, late...)
	if len(a.wakes) == 0 {
		return model.Never
	}
	return a.wakes[0].wake
}

// takeFresh returns the devices that were decided about since the last call, until the next decision.
func (a *agenda) takeFresh() []*device {
	out := a.fresh
	for _, d := range out {
		d.fresh = false
	}
	a.fresh = out[:0]
	return out
}
