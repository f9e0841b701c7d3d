// SPDX-License-Identifier: Apache-2.0

package record

import (
	"sync/atomic"

	"xsched/internal/engine"
)

// TraceEvents is the size of a Trace: at 16,384 transitions of 56 bytes each, 0.9 MB.
const TraceEvents = 1 << 14

// Trace passes the transitions of an engine to one reader. Put neither locks nor allocates nor waits:
// transitions that the reader does not take in time are counted and lost.
type Trace struct {
	events  [TraceEvents]engine.Transition
	written atomic.Uint64 // by the engine's goroutine
	read    atomic.Uint64 // by the reader
	lost    atomic.Uint64
}

// NewTrace returns an empty trace.
func NewTrace() *Trace { return &Trace{} }

// Put adds a transition. Only the engine's goroutine may call it.
func (t *Trace) Put(tr engine.Transition) {
	n := t.written.Load()
	if n-t.read.Load() == TraceEvents {
		t.lost.Add(1)
		return
	}
	t.events[n%TraceEvents] = tr
	t.written.Store(n + 1)
}

// Take calls f for every transition since the last call, in order. Only one goroutine may read.
func (t *Trace) Take(f func(*engine.Transition)) {
	end := t.written.Load()
	for n := t.read.Load(); n < end; n++ {
		f(&t.events[n%TraceEvents])
		t.read.Store(n + 1)
	}
}

// Lost returns how many transitions were lost so far.
func (t *Trace) Lost() uint64 { return t.lost.Load() }
