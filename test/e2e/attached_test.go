// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// TestLongAttachedIdleTakesNoTurns: an idle attached program gets no timeslices beside a busy program of equal
// priority. It gets half of the GPU soon after it becomes busy.
func TestLongAttachedIdleTakesNoTurns(t *testing.T) {
	t.Run("nvidia", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		testAttachedIdle(t, w, w.tenant(options{plain: true}, 20000))
	})
	t.Run("amd", func(t *testing.T) {
		t.Parallel()
		w := amdWorld(t)
		testAttachedIdle(t, w, w.plainHIP(), "--api", "hip")
	})
}

func testAttachedIdle(t *testing.T, w *world, idle *program, api ...string) {
	t.Helper()
	high := w.tenant(options{priority: 10}, 2000, api...) // lows take turns only below a higher priority
	low := w.tenant(options{priority: -5}, 5000, api...)
	low.send("loop")
	w.waitLevel(low.pid(), 2)
	eventually(t, soon, "the low makes progress", func() bool { return low.iterationsAfter(0) > 1 })
	// percent is the share of a window in which a program held the GPU.
	percent := func(p *program, window time.Duration) int {
		from := nowNS()
		time.Sleep(window)
		return int(100 * w.ranIn(p.pid(), from, from+int64(window)) / window)
	}
	alone := percent(low, 2*time.Second)
	w.must("attach", strconv.Itoa(idle.pid()), "--priority", "-5")
	// The daemon needs some seconds to classify the program as idle.
	kept := 0
	eventually(t, soon, "the low keeps 90 %", func() bool {
		kept = percent(low, 3*time.Second)
		t.Logf("the low has %d %%, %d %% alone", kept, alone)
		return kept >= 90*alone/100
	})
	at := nowNS()
	idle.send("loop")
	t.Logf("a turn %v after it began to work", w.firstRun(idle.pid(), at, 2500*time.Millisecond))
	eventually(t, soon, "it has half of the time", func() bool {
		mine := percent(idle, 2*time.Second)
		t.Logf("it has %d %%", mine)
		return mine >= 35*alone/100 && mine <= 65*alone/100
	})
	w.must("detach", strconv.Itoa(idle.pid()))
	for _, p := range []*program{idle, low, high} {
		p.finish()
	}
}

// TestHeldThroughJoin: a program that is suspended by hand while it is attached, and then joins by itself,
// changes from one session to another. In between it is not suspended: the old session ends with a
// resume, and the new one can't suspend channels that the program has not announced. The bound is the one of
// every lease.
func TestHeldThroughJoin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	later := w.path("later.sock")
	cmd := exec.Command(product(t, "virtual/tenant"), "--name", "t", "--kernel-us", "2000")
	cmd.Env = w.env("LD_PRELOAD="+product(t, "libxsched.so")+":"+product(t, "virtual/libvgpu.so"), "XSCHED_SOCKET="+later,
		"LD_LIBRARY_PATH="+filepath.Dir(product(t, "virtual/libcuda.so.1")), "XSCHED_VGPU_SOCKET="+w.path("vgpu.sock"))
	p := w.drive(cmd)
	p.expect("R", soon)
	p.send("loop")
	p.iterates(10)
	w.must("attach", strconv.Itoa(p.pid()))
	w.must("suspend", strconv.Itoa(p.pid()))
	rests := func() bool { // on a busy machine a lease may end meanwhile
		at := nowNS()
		time.Sleep(200 * time.Millisecond)
		return w.ranIn(p.pid(), at, nowNS()) == 0
	}
	eventually(t, soon, "suspended while attached", rests)
	if v := w.process(p.pid()); v == nil || !v.Attached || !v.Held {
		t.Fatalf("not attached and suspended: %+v", v)
	}
	from := nowNS()
	if err := os.Symlink("xsched.sock", later); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "it joins by itself", func() bool {
		v := w.process(p.pid())
		return v != nil && !v.Attached && v.Held && len(v.Queues) > 0
	})
	eventually(t, soon, "suspended again", rests)
	to := nowNS()
	ran := w.ranIn(p.pid(), from, to)
	t.Logf("between its sessions it ran for %v", ran)
	if limit := 100*time.Millisecond + machine().in(from, to); ran > limit {
		t.Errorf("it ran for %v while it joined, at most %v", ran, limit)
	}
	w.must("resume", strconv.Itoa(p.pid()))
	p.iterates(10)
	p.finish()
}
