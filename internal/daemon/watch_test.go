// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"os"
	"testing"
	"time"
)

func TestWorkGuess(t *testing.T) {
	var g workGuess
	start := time.Unix(1000, 0)
	for _, step := range []struct {
		after         time.Duration
		ticks         uint64
		busy, changed bool
	}{
		{0, 5, true, false}, // it counts as busy until something says otherwise
		{900 * time.Millisecond, 5, true, false},
		{time.Second, 5, false, true},
		{3 * time.Second, 5, false, false},
		{3050 * time.Millisecond, 6, true, true},
		{4 * time.Second, 6, true, false},
		{4050 * time.Millisecond, 6, false, true},
	} {
		busy, changed := g.look(start.Add(step.after), step.ticks)
		if busy != step.busy || changed != step.changed {
			t.Errorf("at %v with %d ticks: busy %v, changed %v", step.after, step.ticks, busy, changed)
		}
	}
}

func TestCPUTicks(t *testing.T) {
	before := cpuTicks(os.Getpid())
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
	}
	for limit := time.Now().Add(5 * time.Second); cpuTicks(os.Getpid()) <= before; {
		if time.Now().After(limit) {
			t.Fatalf("%d ticks before and after work", before)
		}
	}
	if n := cpuTicks(1 << 30); n != 0 {
		t.Errorf("%d ticks of nobody", n)
	}
}
