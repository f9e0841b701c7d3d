// SPDX-License-Identifier: Apache-2.0

package gpumodel

import "xsched/internal/model"

// Agenda is what will happen, ordered by time, then by age: a binary heap. Its zero value is empty.
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

// When is the time of the first; model.Never if there is none.
func (a *Agenda[T]) When() model.Time {
	if len(a.heap) == 0 {
		return model.Never
	}
	return a.heap[0].at
}

// Push enters what happens at a time.
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

// Pop takes the first away. Preconditions: there is one.
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
