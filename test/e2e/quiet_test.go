// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"
)

func (w *world) rings() uint64 {
	w.t.Helper()
	st, err := w.client.Stats(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return st.Doorbells
}

// TestQuietWhileAlone: a program that is alone on the GPU changes between busy and idle without doorbells. Its
// accounted time matches the device's, and a program of higher priority still preempts it.
func TestQuietWhileAlone(t *testing.T) {
	w := newWorld(t, "--mode", "suspend")
	low := w.tenant(options{}, 2000, "--depth", "1")
	w.waitLevel(low.pid(), 3)
	before, from := w.rings(), nowNS()
	at := w.process(low.pid()).Queues[0]
	low.send("loop")
	low.iterates(300)
	low.send("pause")
	low.expect("P", soon)
	to := nowNS()
	q, rings := w.process(low.pid()).Queues[0], w.rings()-before
	changes := q.Transitions - at.Transitions
	if changes < 100 || rings > 5+changes/50 {
		t.Errorf("%d rings for %d changes", rings, changes)
	}
	if q.Busy {
		t.Error("busy while it pauses")
	}
	// Accounting runs from the launch to the end of the wait: device time plus the program's reaction.
	ran, held := time.Duration(q.RanNS-at.RanNS), w.ranIn(low.pid(), from, to)
	if ran < held || ran > time.Duration(to-from) {
		t.Errorf("ran for %v of %v, the device says %v", ran, time.Duration(to-from), held)
	}
	time.Sleep(100 * time.Millisecond)
	if more := w.process(low.pid()).Queues[0].RanNS - q.RanNS; more != 0 {
		t.Errorf("%v more while it pauses", time.Duration(more))
	}
	low.send("loop")
	high := w.tenant(options{priority: 10}, 20000)
	high.send("loop")
	w.assertStopped(low.pid(), "while the high works")
	high.finish()
	low.finish()
}
