// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// The reader gets every transition in order, while another goroutine writes; only a full trace loses any.
func TestTrace(t *testing.T) {
	tr := NewTrace()
	const n = 200_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range n {
			tr.Put(engine.Transition{At: model.Time(i), PID: i})
		}
	}()
	var got, last uint64
	take := func() {
		tr.Take(func(e *engine.Transition) {
			if int(e.At) != e.PID || got > 0 && uint64(e.PID) <= last {
				t.Fatalf("torn or out of order: %+v after %d", *e, last)
			}
			got, last = got+1, uint64(e.PID)
		})
	}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		take()
	}
	take()
	if got+tr.Lost() != n {
		t.Errorf("%d read and %d lost of %d", got, tr.Lost(), n)
	}
}

func TestTraceDoesNotAllocate(t *testing.T) {
	tr := NewTrace()
	if n := testing.AllocsPerRun(2*TraceEvents, func() { tr.Put(engine.Transition{PID: 1}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if tr.Lost() == 0 {
		t.Error("a full trace lost nothing")
	}
}
