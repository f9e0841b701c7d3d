// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"
	"time"

	"xsched/internal/control"
)

// sampleOf returns two programs with n queues each.
func sampleOf(n int) *control.List {
	out := &control.List{Policy: "HPF"}
	for i := range 2 {
		p := control.Process{PID: 10 + i, Session: uint64(1 + i)}
		for q := range n {
			p.Queues = append(p.Queues, control.Queue{Index: uint32(q), Device: "0000:01:00.0"})
		}
		out.Processes = append(out.Processes, p)
	}
	return out
}

// TestDiffIsLinear: a comparison of samples costs per queue what it costs for few, and ends at its limit.
func TestDiffIsLinear(t *testing.T) {
	cost := func(n int) time.Duration {
		last, now := sampleOf(n), sampleOf(n)
		best := time.Hour
		for range 10 {
			start := time.Now()
			if changes := diff(last, now, changesAtOnce); len(changes) != 0 {
				t.Fatalf("%d changes", len(changes))
			}
			best = min(best, time.Since(start))
		}
		return best
	}
	few, many := cost(128), cost(2048)
	t.Logf("128 queues: %v, 2048 queues: %v, %.1f times", few, many, float64(many)/float64(few))
	if many > 64*few { // 16 times as many queues; their square is 256 times
		t.Errorf("128 queues take %v, 2048 queues %v", few, many)
	}
	busy := sampleOf(2048)
	for i := range busy.Processes {
		for k := range busy.Processes[i].Queues {
			busy.Processes[i].Queues[k].Busy = true
		}
	}
	if n := len(diff(sampleOf(2048), busy, changesAtOnce)); n <= changesAtOnce || n > changesAtOnce+2048 {
		t.Errorf("%d changes", n)
	}
}
