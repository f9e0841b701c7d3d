// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

// TestMovableSegments: a program that maps memory itself, allocates, frees, asks about addresses, and destroys contexts
// with memory in them finds everything as it left it, over many moves.
func TestMovableSegments(t *testing.T) {
	w := newWorld(t)
	p := w.run(options{args: []string{"--movable"}}, compile(t, "gcc", "segments.c", "-std=gnu11", "-lpthread"))
	p.expect("R", soon)
	eventually(t, soon, "the daemon knows of the memory", func() bool {
		known := w.process(p.pid())
		return known != nil && len(known.Memory) > 0 && known.Memory[0].Device == firstGPU && known.Memory[0].MovableBytes > 0
	})
	for range 20 {
		w.must("evict", strconv.Itoa(p.pid()), "--gpu", firstGPU)
		time.Sleep(5 * time.Millisecond)
		w.must("restore", strconv.Itoa(p.pid()))
		time.Sleep(20 * time.Millisecond)
	}
	p.send("end")
	line := p.expect("", soon)
	var rounds [3]int
	if n, _ := fmt.Sscanf(line, "S %d %d %d", &rounds[0], &rounds[1], &rounds[2]); n != 3 {
		t.Fatalf("wrong result: %s; stderr: %s", line, p.stderr())
	}
	for i, n := range rounds {
		if n < 10 {
			t.Errorf("thread %d had %d rounds", i, n)
		}
	}
	s, err := w.gpu.Stats()
	if err != nil {
		t.Fatal(err)
	}
	a, found := s.Client(p.pid())
	if !found || a.Missed != 0 || a.Torn != 0 || a.Faults != 0 {
		t.Errorf("wrong result: %+v", a)
	}
}
