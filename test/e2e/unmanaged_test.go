// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// longestGap returns the longest time in [from, to) in which a program finished no iteration.
func (p *program) longestGap(from, to int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, longest := from, int64(0)
	for _, end := range p.ends {
		if end > from && end < to {
			longest, last = max(longest, end-last), end
		}
	}
	return time.Duration(max(longest, to-last))
}

// stallLimit is the longest stall of a tenant when a neighbor becomes unmanaged, beyond the usual
// gap between its iterations.
const stallLimit = 100 * time.Millisecond

// TestProgramBecomesUnmanaged: after a detach, and after a restart of the daemon, a program without
// a session shares the GPU. The tenants' tiny timeslices must not stall them beside it.
func TestProgramBecomesUnmanaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	high := w.tenant(options{priority: 10}, 2000) // idle: its presence gives the others a tiny slice
	low := w.tenant(options{}, 5000)
	low.send("loop")
	w.waitLevel(low.pid(), 3)
	plain := w.low(options{plain: true})
	// gap measures the low over two seconds; a loaded machine may need another try.
	gap := func(what string, begin func()) {
		t.Helper()
		var stalled time.Duration
		for range 3 {
			begin()
			from := nowNS()
			time.Sleep(2500 * time.Millisecond)
			if stalled = low.longestGap(from, nowNS()); stalled <= stallLimit {
				break
			}
		}
		t.Logf("%s: the low's longest gap is %v", what, stalled)
		if stalled > stallLimit {
			t.Errorf("%s: the low stalled for %v, want %v at most", what, stalled, stallLimit)
		}
	}
	gap("detach", func() {
		w.must("attach", strconv.Itoa(plain.pid()))
		eventually(t, soon, "no unmanaged program is left", func() bool { return w.account(low.pid()).SliceNS < nativeSliceNS })
		w.must("detach", strconv.Itoa(plain.pid()))
	})
	gap("restart", func() {
		w.killDaemon()
		w.startDaemon()
		eventually(t, soon, "the tenants rejoin", func() bool { return w.process(low.pid()) != nil && w.process(high.pid()) != nil })
	})
	for _, p := range []*program{plain, low, high} {
		p.finish()
	}
}

// TestLongShortUnmanagedPrograms: unmanaged programs of one second each follow one another, as in a
// script of short tests. A lower tenant keeps progressing next to them. The daemon knows each of them for one
// or two scans only.
func TestLongShortUnmanagedPrograms(t *testing.T) {
	w := newWorld(t)
	high := w.tenant(options{priority: 10}, 2000) // idle: its presence gives the others a tiny slice
	low := w.tenant(options{}, 5000)
	low.send("loop")
	w.waitLevel(low.pid(), 3)
	time.Sleep(2 * time.Second) // two scans without unmanaged programs
	const seconds = 8
	from := nowNS()
	for nowNS() < from+seconds*time.Second.Nanoseconds() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		p := w.low(options{plain: true})
		<-ctx.Done()
		cancel()
		_ = p.cmd.Process.Kill()
		_ = p.wait(soon)
	}
	to := nowNS()
	rate := float64(low.iterationsAfter(from)-low.iterationsAfter(to)) * 1e9 / float64(to-from)
	t.Logf("lower tenant: %.1f iterations/s, longest gap %v", rate, low.longestGap(from, to))
	if rate < 25 { // half the GPU would be 100
		t.Errorf("next to unmanaged programs of one second the lower tenant makes %.1f iterations/s", rate)
	}
	low.finish()
	high.finish()
}

// TestLongScanOfManyMappings: processes with as many mappings as the kernel allows do not delay the
// scan that finds an unmanaged program.
func TestLongScanOfManyMappings(t *testing.T) {
	w := newWorld(t)
	high := w.tenant(options{priority: 10}, 2000)
	low := w.tenant(options{}, 5000)
	low.send("loop")
	w.waitLevel(low.pid(), 3)
	mappings := filepath.Join(t.TempDir(), "mappings")
	compileC(t, mappings, "gcc", "testdata/mappings.c")
	const processes = 40
	for range processes {
		w.exec(mappings, "65000").expect("R", time.Minute)
	}
	time.Sleep(3 * time.Second) // a scan of them is over, or has begun
	from := nowNS()
	plain := w.low(options{plain: true})
	eventually(t, time.Minute, "the unmanaged program is noticed", func() bool { return w.account(low.pid()).SliceNS >= nativeSliceNS })
	noticed := time.Duration(nowNS() - from)
	t.Logf("an unmanaged program is noticed after %v", noticed)
	if noticed > 3*time.Second {
		t.Errorf("next to %d processes with 65,000 mappings an unmanaged program is noticed after %v", processes, noticed)
	}
	for _, p := range []*program{plain, low, high} {
		p.finish()
	}
}
