// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	vdevice "xsched/internal/virtual/device"
)

// Every world of this file has two GPUs of 64 MiB each.
const (
	movableGPUs = 2
	cardMiB     = 64
	leftMiB     = 8 // of a program whose memory is away: small allocations stay
)

// movables is a world of programs whose memory can move.
type movables struct {
	*world
	binary string
}

// holder is such a program: threads on both GPUs that check their memory all the time.
type holder struct {
	*program
	mib int // on each GPU
}

func newMovables(t testing.TB, serveArgs ...string) *movables {
	t.Helper()
	w := newWorldWith(t, []string{"--devices", strconv.Itoa(movableGPUs), "--device-memory", fmt.Sprintf("%dMiB", cardMiB)}, serveArgs...)
	binary, err := movable()
	if err != nil {
		t.Fatal(err)
	}
	return &movables{w, binary}
}

// hold starts a program with four threads, which have two contexts on each GPU, and this much memory on each.
func (w *movables) hold(priority, mib int) *holder {
	w.t.Helper()
	p := w.run(options{priority: priority, args: []string{"--movable"}}, w.binary, strconv.Itoa(movableGPUs), "4", "2", strconv.Itoa(mib/4), "30")
	return &holder{p, mib}
}

// ready waits until the program has its memory, and lets it run.
func (h *holder) ready() *holder {
	h.t.Helper()
	h.expect("R", soon)
	h.send("loop")
	return h
}

// lastWords logs how a program failed, if it did.
func (h *holder) lastWords() {
	for {
		select {
		case line, ok := <-h.lines:
			if !ok {
				h.t.Logf("%d has ended; stderr: %s", h.pid(), h.stderr())
				return
			}
			if strings.HasPrefix(line, "X") {
				h.t.Logf("%d: %s", h.pid(), line)
			}
		default:
			return
		}
	}
}

// on returns the device memory of a program, by the device's own account.
func (w *movables) on(h *holder, gpu int) int {
	w.t.Helper()
	s := w.stats()
	return int(s.MemoryOf(h.pid(), gpu) >> 20)
}

func (w *movables) stats() *vdevice.Stats {
	w.t.Helper()
	s, err := w.gpu.Stats()
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *movables) isAway(h *holder) bool {
	return w.on(h, 0) <= leftMiB && w.on(h, 1) <= leftMiB
}

func (w *movables) isBack(h *holder) bool { return w.on(h, 0) >= h.mib && w.on(h, 1) >= h.mib }

func (w *movables) awaitAway(h *holder) {
	w.t.Helper()
	eventually(w.t, soon, fmt.Sprintf("the memory of %d leaves", h.pid()), func() bool { return w.isAway(h) })
}

func (w *movables) awaitBack(h *holder) {
	w.t.Helper()
	eventually(w.t, soon, fmt.Sprintf("the memory of %d returns", h.pid()), func() bool { return w.isBack(h) })
}

func (w *movables) order(verb string, h *holder) (string, error) {
	return w.xsched(verb, strconv.Itoa(h.pid()))
}

// rests sees that no thread of a program comes to an end of an iteration.
func (w *movables) rests(h *holder) {
	w.t.Helper()
	time.Sleep(50 * time.Millisecond) // what had ended is reported by now
	at := nowNS()
	time.Sleep(200 * time.Millisecond)
	if n := h.iterationsAfter(at); n > 0 {
		w.t.Errorf("%d iterations without memory", n)
	}
}

// ends lets a program compare all of its memory, and end.
func (w *movables) ends(h *holder) {
	w.t.Helper()
	h.send("quit")
	line := h.expect("", soon)
	for ; !strings.HasPrefix(line, "S "); line = h.expect("", soon) {
		if strings.HasPrefix(line, "X ") {
			w.t.Errorf("wrong result: %s", line)
		}
	}
	var iterations, wrong int
	if n, _ := fmt.Sscanf(line, "S %d %d", &iterations, &wrong); n != 2 || wrong != 0 || iterations == 0 {
		w.t.Errorf("wrong result: %s", line)
	}
	if err := h.wait(soon); err != nil {
		w.t.Errorf("wrong result: %v; stderr: %s", err, h.stderr())
	}
	w.sound(h.pid())
}

// sound sees that a program never used memory that was away.
func (w *movables) sound(pid int) {
	w.t.Helper()
	if a := w.account(pid); a.Missed != 0 || a.Torn != 0 || a.Faults != 0 {
		w.t.Errorf("wrong result: %d accesses to memory that was away, %d blocks unmapped under work, %d device errors", a.Missed, a.Torn, a.Faults)
	}
}

// empty sees that nobody has memory on the device.
func (w *movables) empty() {
	w.t.Helper()
	eventually(w.t, soon, "no device memory is in use", func() bool { return len(w.stats().Memory) == 0 })
}

// Memory leaves and returns on request, 20 times, while another program goes on. Nothing is lost, and nothing is
// used while it is away.
func TestEvictRestore(t *testing.T) {
	t.Parallel()
	w := newMovables(t)
	moved, other := w.hold(0, 16).ready(), w.hold(0, 16).ready()
	moved.iterates(20)
	for i := range 20 {
		if out, err := w.order("evict", moved); err != nil {
			t.Fatalf("evict: %v\n%s", err, out)
		}
		w.awaitAway(moved)
		if i%5 == 0 {
			w.rests(moved)
		}
		other.iterates(2)
		if out, err := w.order("restore", moved); err != nil {
			t.Fatalf("restore: %v\n%s", err, out)
		}
		w.awaitBack(moved)
		moved.iterates(10)
	}
	w.ends(moved)
	w.ends(other)
	w.empty()
}

// Two programs that do not fit together on one GPU move against each other on request, at the same time.
func TestEvictSwap(t *testing.T) {
	t.Parallel()
	w := newMovables(t)
	first := w.hold(0, 40).ready()
	first.iterates(20)
	for range 5 {
		if out, err := w.order("evict", first); err != nil {
			t.Fatalf("evict: %v\n%s", err, out)
		}
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
		if out, err := w.order("restore", second); err != nil {
			t.Fatalf("restore: %v\n%s", err, out)
		}
		second.iterates(20)
		first = second
	}
	w.ends(first)
	w.empty()
}

// An allocation of a more important program makes a lower one's memory leave. It returns when there is room.
func TestEvictOnDemand(t *testing.T) {
	t.Parallel()
	w := newMovables(t)
	low := w.hold(0, 40).ready()
	low.iterates(20)
	high := w.hold(10, 16).ready()
	for gpu := range movableGPUs {
		high.send(fmt.Sprintf("alloc %d 24", gpu))
		if line := high.expect("A", soon); !strings.HasPrefix(line, "A 0 ") {
			t.Fatalf("an allocation that needs a lower program's memory: %s", line)
		}
	}
	high.iterates(20)
	w.rests(low) // also while one GPU has its memory: it may use both
	for gpu := range movableGPUs {
		says(high.program, fmt.Sprintf("free %d", gpu), "F 0")
	}
	w.awaitBack(low)
	low.iterates(20)
	// Nobody can leave for the lower one.
	low.send("alloc 0 40")
	if line := low.expect("A", soon); !strings.HasPrefix(line, "A 2 ") {
		t.Errorf("an allocation without room: %s", line)
	}
	w.ends(high)
	w.ends(low)
	w.empty()
}

// A daemon that dies leaves nobody without memory, whatever it had ordered.
func TestDaemonKilledWhileMemoryIsAway(t *testing.T) {
	t.Parallel()
	w := newMovables(t)
	h := w.hold(0, 40).ready()
	h.iterates(20)
	var orders sync.WaitGroup // one that is late would reach the next daemon
	for i := range 4 {
		if i%2 == 0 {
			if out, err := w.order("evict", h); err != nil {
				t.Fatalf("evict: %v\n%s", err, out)
			}
			w.awaitAway(h)
		} else if err := w.gpu.SetFault(fmt.Sprintf("step:copy:%d:1+:30", h.pid())); err != nil { // in the middle of a move
			t.Fatal(err)
		} else {
			orders.Go(func() { _, _ = w.order("evict", h) })
			eventually(t, soon, "the move begins", func() bool { return w.on(h, 0) < h.mib || h.iterationsAfter(nowNS()-int64(100*time.Millisecond)) == 0 })
		}
		w.killDaemon()
		orders.Wait()
		w.awaitBack(h)
		h.iterates(20)
		if err := w.gpu.ClearFaults(); err != nil {
			t.Fatal(err)
		}
		w.startDaemon()
		w.waitLevel(h.pid(), 1)
		if out, err := w.order("restore", h); err != nil { // a daemon remembers what operators want
			t.Errorf("restore: %v\n%s", err, out)
		}
		w.awaitBack(h)
	}
	w.ends(h)
	w.empty()
}
