// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"xsched/internal/control"
)

// newMovablesHIP is a world of HIP programs on two virtual AMD GPUs.
func newMovablesHIP(t *testing.T) *movables {
	t.Helper()
	w := amdWorld(t, "--devices", fmt.Sprint(movableGPUs), "--device-memory", fmt.Sprintf("%dMiB", cardMiB))
	binary := filepath.Join(t.TempDir(), "program")
	compileC(t, binary, "gcc", "-DHIP", "testdata/movable.c", product(t, "virtual/libamdhip64.so.6"), "-lpthread")
	return &movables{w, binary}
}

// The memory of HIP programs leaves and returns by hand, at once with another's, and on demand. Nothing is lost.
func TestEvictHIP(t *testing.T) {
	t.Parallel()
	w := newMovablesHIP(t)
	order := func(verb string, h *holder) {
		t.Helper()
		if out, err := w.order(verb, h); err != nil {
			t.Fatalf("%s: %v\n%s", verb, err, out)
		}
	}
	first := w.hold(0, 32).ready()
	first.iterates(20)
	for range 10 {
		order("evict", first)
		w.awaitAway(first)
		w.rests(first)
		order("restore", first)
		w.awaitBack(first)
		first.iterates(10)
	}
	order("evict", first)
	second := w.hold(0, 40).ready()
	second.iterates(20)
	var both sync.WaitGroup
	both.Go(func() { _, _ = w.order("evict", second) })
	both.Go(func() { _, _ = w.order("restore", first) })
	both.Wait()
	w.awaitAway(second)
	w.awaitBack(first)
	first.iterates(20)
	w.rests(second)
	w.ends(first)
	order("restore", second)
	second.iterates(20)

	high := w.hold(10, 8).ready()
	for gpu := range movableGPUs {
		high.send(fmt.Sprintf("alloc %d 24", gpu))
		if line := high.expect("A", soon); !strings.HasPrefix(line, "A 0 ") {
			t.Fatalf("an allocation that needs a lower program's memory: %s", line)
		}
	}
	high.iterates(20)
	w.rests(second)
	w.killDaemon() // then the lower one returns as soon as there is room
	for gpu := range movableGPUs {
		says(high.program, fmt.Sprintf("free %d", gpu), "F 0")
	}
	w.awaitBack(second)
	second.iterates(20)
	w.ends(high)
	w.ends(second)
	w.empty()
}

// HIP says of movable memory what it says of its own. A process that has reset a device never moves again.
func TestMovableCallsHIP(t *testing.T) {
	t.Parallel()
	w := newMovablesHIP(t)
	binary := filepath.Join(t.TempDir(), "program")
	compileC(t, binary, "gcc", "testdata/movable_calls.c", product(t, "virtual/libamdhip64.so.6"))
	p := w.run(options{args: []string{"--movable"}}, binary)
	if line := p.expect("", soon); line != "D" {
		t.Fatal(line)
	}
	var memory []control.Memory
	eventually(t, soon, "the allocations are known", func() bool {
		if known := w.process(p.pid()); known != nil {
			memory = known.Memory
		}
		return len(memory) == 1 && memory[0].MovableBytes == 3*6<<20 && memory[0].Fixed["refused"] == 3*(5<<20+100)
	})
	w.must("evict", fmt.Sprint(p.pid()))
	w.must("restore", fmt.Sprint(p.pid()))
	p.send("reset")
	if line := p.expect("", soon); line != "R" {
		t.Fatal(line)
	}
	if out, err := w.xsched("evict", fmt.Sprint(p.pid())); err == nil {
		t.Errorf("evict after a reset: %s", out)
	}
	p.send("end")
	if err := p.wait(soon); err != nil {
		t.Errorf("%v; stderr: %s", err, p.stderr())
	}
}
