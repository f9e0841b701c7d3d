// SPDX-License-Identifier: Apache-2.0

package gpumodel

import "xsched/internal/model"

// Agenda is a priority queue of future events, ordered by time and insertion. The zero value is empty.
type Agenda[T any] struct {
	heap []entry[T]
	age  uint64
}

type entry[T any] struct {
	at   model.Time
	age  uint64
	what T
}

func (a *entry[T]) before(b *entry[T]) bool { return a.at < b.at || a.at == b.at && a.age < b.age }

// When returns the time of the first event, or model.Never.
func (a *Agenda[T]) When() model.Time {
	if len(a.heap) == 0 {
		return model.Never
	}
	return a.heap[0].at
}

// Push adds an event.
func (a *Agenda[T]) Push(at model.Time, what T) {
	a.age++
	a.heap = append(a.heap, entry[T]{at, a.age, what})
	h := a.heap
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h[i].before(&h[parent]) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

// Pop removes the first event. Preconditions: the agenda is not empty.
func (a *Agenda[T]) Pop() T {
	h := a.heap
	first, last := h[0].what, len(h)-1
	h[0], h[last] = h[last], entry[T]{}
	h = h[:last]
	a.heap = h
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h[child+1].before(&h[child]) {
			child++
		}
		if !h[child].before(&h[i]) {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	return first
}
