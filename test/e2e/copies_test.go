// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
)

func (w *world) stats() control.Stats {
	w.t.Helper()
	st, err := w.client.Stats(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

// operations is the number of driver operations so far.
func operations(s control.Stats) uint64 { return s.Suspends + s.Resumes + s.TimesliceSets }

// waitCopies waits until the daemon knows that a program only copies, or no longer.
func (w *world) waitCopies(pid int, want bool) {
	w.t.Helper()
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if p := w.process(pid); p != nil && len(p.Queues) > 0 && p.Queues[0].CopiesOnly == want {
			return
		}
	}
	w.t.Fatalf("process %d: copies only is not %v: %+v", pid, want, w.process(pid))
}

// both lets a program serve requests beside another one for a while. It returns the P99 of the requests and the
// rate of the other one.
func both(high, low *program, d time.Duration) (p99 time.Duration, rate float64) {
	from := nowNS()
	high.send("rate 100")
	time.Sleep(d)
	high.send("pause")
	high.expect("P", soon)
	var took []int64
	high.mu.Lock()
	for i, end := range high.ends {
		if end > from {
			took = append(took, high.took[i])
		}
	}
	high.mu.Unlock()
	slices.Sort(took)
	return time.Duration(took[len(took)*99/100]), float64(low.iterationsAfter(from)) / time.Duration(nowNS()-from).Seconds()
}

// TestCopyOnlyLow: beside a program that only copies, a high needs no protection, and the daemon leaves both alone.
// The first kernel of that program makes it an ordinary low.
func TestCopyOnlyLow(t *testing.T) {
	w := newWorld(t)
	low := w.tenant(options{}, 20000, "--copy", "4000000")
	low.send("loop")
	high := w.tenant(options{priority: 10}, 300)
	w.waitLevel(low.pid(), 3)
	w.waitLevel(high.pid(), 3)
	w.waitCopies(low.pid(), true)
	if text := w.must("list"); !strings.Contains(text, "copies") {
		t.Errorf("xsched list does not show a program that copies:\n%s", text)
	}
	var p99 time.Duration
	var rate float64
	var operated uint64
	for range 5 { // programs resume themselves while other load delays the daemon
		before := operations(w.stats())
		eventually(t, soon, "no more driver operations", func() bool {
			time.Sleep(200 * time.Millisecond) // from before the daemon knew
			was := before
			before = operations(w.stats())
			return before == was
		})
		p99, rate = both(high, low, time.Second)
		if operated = operations(w.stats()) - before; operated == 0 {
			break
		}
		t.Logf("%d driver operations", operated)
	}
	if operated != 0 {
		t.Error("never no driver operation beside a program that only copies")
	}
	if p := w.process(low.pid()); p.Queues[0].SuspendedNS != 0 || p.Queues[0].SliceUS != 0 {
		t.Errorf("the program that copies was not left alone: %+v", p.Queues[0])
	}
	w.must("mode", "off")
	nativeP99, nativeRate := both(high, low, time.Second)
	w.must("mode", "live")
	// The operations prove that the daemon did nothing. Times depend on the load of this machine; the simulator
	// compares them (TestCopyOnlyLow there).
	t.Logf("P99 %v, native %v; copies %.0f/s, native %.0f/s", p99, nativeP99, rate, nativeRate)

	low.send("compute")
	low.iterates(2)
	w.waitCopies(low.pid(), false)
	high.send("rate 50")
	high.iterates(10)
	if p := w.process(low.pid()); p.Queues[0].SliceUS != 1 && p.Queues[0].Preemptions == 0 {
		t.Errorf("a program with kernels is not an ordinary low: %+v", p.Queues[0])
	}
	high.finish()
	low.finish()
}

// TestSmallUploadsInterruptNobody: the driver sends a small copy to the device through the compute channel, so that each
// interrupts a neighbour's kernel. The shim sends those of a service that gathers its kernels through a copy engine.
func TestSmallUploadsInterruptNobody(t *testing.T) {
	t.Parallel()
	const uploads = 50
	w := newWorld(t)
	high := w.run(options{priority: 10}, compile(t, "gcc", "uploads.c", "-std=gnu11"), strconv.Itoa(uploads))
	high.expect("R", soon)
	low := w.tenant(options{}, 20000)
	w.waitLevel(low.pid(), 3)
	low.send("loop")
	measure := func(name string) uint64 {
		t.Helper()
		w.must("policy", name)
		eventually(t, soon, "the low has a tiny slice", func() bool {
			p := w.process(low.pid())
			return p != nil && len(p.Queues) == 1 && p.Queues[0].SliceUS == 1
		})
		low.iterates(2)
		before := w.account(low.pid()).Preemptions
		high.send("")
		high.expect("right", soon)
		return w.account(low.pid()).Preemptions - before
	}
	own, gathers := measure("HPF"), measure("HPF/batch-all")
	t.Logf("%d small uploads: the job's kernels were interrupted %d times, and %d times beside a service that gathers", uploads, own, gathers)
	if own < uploads*3/4 {
		t.Errorf("%d uploads interrupted %d kernels: this is not how the driver sends them", uploads, own)
	}
	if gathers > uploads/10 {
		t.Errorf("%d uploads of a service that gathers interrupted %d kernels", uploads, gathers)
	}
	low.finish()
	if err := high.wait(soon); err != nil {
		t.Error(err)
	}
}
