// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// nativeSliceNS is the driver's default timeslice of a compute group.
const nativeSliceNS = 2048000

func (w *world) account(pid int) gpumodel.Account {
	w.t.Helper()
	stats, err := w.gpu.Stats()
	if err != nil {
		w.t.Fatal(err)
	}
	a, _ := stats.Client(pid)
	return a
}

// ranIn returns how long a process held the GPU in [from, to), by the device's own timeline.
func (w *world) ranIn(pid int, from, to int64) time.Duration {
	w.t.Helper()
	spans, err := w.gpu.Timeline(model.Time(from), model.Time(to))
	if err != nil {
		w.t.Fatal(err)
	}
	var sum int64
	for _, s := range spans {
		if s.PID == pid && s.Kind == gpumodel.KindRun {
			sum += max(0, min(s.T1, to)-max(s.T0, from))
		}
	}
	return time.Duration(sum)
}

// firstRun returns the time from `at` until the process holds the GPU; it fails after the limit.
func (w *world) firstRun(pid int, at int64, limit time.Duration) time.Duration {
	w.t.Helper()
	return w.firstRunOf(at, limit, pid)
}

// firstRunOf is firstRun for the first of several processes.
func (w *world) firstRunOf(at int64, limit time.Duration, pids ...int) time.Duration {
	w.t.Helper()
	var first int64
	eventually(w.t, limit+time.Second, fmt.Sprintf("one of %v runs again", pids), func() bool {
		spans, err := w.gpu.Timeline(model.Time(at), model.Time(nowNS()))
		if err != nil {
			w.t.Fatal(err)
		}
		for _, s := range spans {
			if slices.Contains(pids, s.PID) && s.Kind == gpumodel.KindRun && s.T1 > at {
				first = max(s.T0, at)
				return true
			}
		}
		return false
	})
	waited := elapsed(at, first)
	if waited > limit {
		w.t.Errorf("%v ran after %v, want %v at most", pids, waited, limit)
	}
	return waited
}

// suspendByHand suspends a process and waits until the device no longer runs it.
func (w *world) suspendByHand(p *program) {
	w.t.Helper()
	w.must("suspend", strconv.Itoa(p.pid()))
	w.assertStopped(p.pid(), "after xsched suspend")
}

func (w *world) assertStopped(pid int, when string) {
	w.t.Helper()
	eventually(w.t, soon, fmt.Sprintf("process %d stops (%s)", pid, when), func() bool {
		at := nowNS()
		time.Sleep(60 * time.Millisecond)
		return w.ranIn(pid, at, nowNS()) == 0
	})
}

// low starts a busy best-effort tenant that the daemon can stop in mid-kernel.
func (w *world) low(o options) *program {
	w.t.Helper()
	p := w.tenant(o, 20000)
	p.send("loop")
	if !o.plain {
		w.waitLevel(p.pid(), 3)
	}
	eventually(w.t, soon, "the low makes progress", func() bool { return p.iterationsAfter(0) > 1 })
	return p
}

func (w *world) assertNativeSlice(pid int) {
	w.t.Helper()
	eventually(w.t, soon, "the original timeslice is restored", func() bool {
		return w.account(pid).SliceNS == nativeSliceNS
	})
}

func TestDaemonKilledWhileLowIsSuspended(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	high := w.tenant(options{priority: 10}, 90) // its presence gives the low a tiny slice
	low := w.low(options{})
	eventually(t, soon, "the low has a tiny slice", func() bool { return w.account(low.pid()).SliceNS < nativeSliceNS })
	w.suspendByHand(low)
	at := w.killDaemon()
	t.Logf("ran again after %v", w.firstRun(low.pid(), at, 200*time.Millisecond))
	w.assertNativeSlice(low.pid())
	if took := elapsed(at, nowNS()); took > 200*time.Millisecond {
		t.Errorf("its own timeslice was back %v after the kill, want 200 ms at most", took)
	}
	// Clients join a new daemon on their own within a second.
	w.startDaemon()
	joined := eventually(t, soon, "both rejoin", func() bool {
		return w.process(low.pid()) != nil && w.process(high.pid()) != nil
	})
	t.Logf("rejoined %v after the new daemon answered", joined)
	// What the operator set holds: it is in the state file.
	w.assertStopped(low.pid(), "by the new daemon")
	w.must("resume", strconv.Itoa(low.pid()))
	low.finish()
	high.finish()
}

func TestDaemonStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	low := w.low(options{})
	w.suspendByHand(low)
	at := nowNS()
	if err := w.serve.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Logf("ran again after %v", w.firstRun(low.pid(), at, 200*time.Millisecond))
	eventually(t, soon, "the low runs on beside a stopped daemon", func() bool { return low.iterationsAfter(at) > 50 })
	if err := w.serve.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// The suspension is still in force: the daemon must notice that the lease expired.
	w.assertStopped(low.pid(), "after the daemon went on")
	w.must("resume", strconv.Itoa(low.pid()))
	w.firstRun(low.pid(), nowNS(), 200*time.Millisecond)
	low.finish()
}

// TestSocketsDeleted: a daemon whose sockets were deleted is named, and how to get them back. One that was killed is
// not, although it leaves its lock.
func TestSocketsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, path := range []string{control.ControlSocket, filepath.Join(control.ClientDir, control.ControlSocket)} {
		if err := os.Remove(w.path(path)); err != nil {
			t.Fatal(err)
		}
	}
	pid := w.serve.Process.Pid
	out, err := w.xsched("list")
	if want := fmt.Sprintf("the daemon (pid %d) runs, but its socket %s is gone", pid, w.path(control.ControlSocket)); err == nil || !strings.Contains(out, want) || !strings.Contains(out, fmt.Sprintf("`kill %d`", pid)) {
		t.Errorf("%v: %s; want %q", err, out, want)
	}
	w.killDaemon()
	if out, err := w.xsched("list"); err == nil || !strings.Contains(out, "no daemon at") {
		t.Errorf("after its end: %v: %s", err, out)
	}
	w.startDaemon()
	w.must("list")
}

func TestEngineWedged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	low := w.low(options{})
	w.suspendByHand(low)
	if _, err := w.client.Wedge(context.Background(), time.Second); err != nil {
		t.Fatal(err)
	}
	at := nowNS()
	t.Logf("ran again after %v", w.firstRun(low.pid(), at, 200*time.Millisecond))
	eventually(t, soon, "the low runs on beside a wedged engine", func() bool { return low.iterationsAfter(at) > 10 })
	w.assertStopped(low.pid(), "after the engine went on")
	w.must("resume", strconv.Itoa(low.pid()))
	low.finish()
}

func TestDaemonKilledWhileAttachedIsSuspended(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	low := w.low(options{plain: true})
	if p := w.process(low.pid()); p != nil {
		t.Fatal("a process without our shim is known before it is attached")
	}
	w.suspendByHand(low)
	if p := w.process(low.pid()); p == nil || !p.Attached {
		t.Fatalf("process = %+v, want attached", p)
	}
	at := w.killDaemon()
	t.Logf("ran again after %v", w.firstRun(low.pid(), at, 200*time.Millisecond))
	w.assertNativeSlice(low.pid())
	low.finish()
	eventually(t, soon, "the guardian ends", func() bool { return len(guardians(t, w.dir)) == 0 })
}

// guardians returns the PIDs of this world's guardian processes.
func guardians(t *testing.T, dir string) []int {
	t.Helper()
	var pids []int
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "guardian") {
			continue
		}
		env, err := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		if err != nil || !strings.Contains(string(env), "XSCHED_DIR="+dir+"\x00") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestHighKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mode", "suspend")
	high := w.tenant(options{priority: 10}, 20000)
	low1, low2 := w.low(options{}), w.low(options{})
	high.send("loop")
	w.assertStopped(low1.pid(), "while the high works")
	w.assertStopped(low2.pid(), "while the high works")
	at := nowNS()
	if err := high.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	first := func(p *program) {
		eventually(t, soon, "the low iterates", func() bool { return p.iterationsAfter(at) > 0 })
	}
	// Lows take turns: one runs within 100 ms, the other after it.
	t.Logf("a low ran after %v", w.firstRunOf(at, 100*time.Millisecond, low1.pid(), low2.pid()))
	first(low1)
	first(low2)
	low1.finish()
	low2.finish()
}

// daemonFDs counts the daemon's open files.
func (w *world) daemonFDs() int {
	w.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.serve.Process.Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(entries)
}

func (w *world) files() int {
	w.t.Helper()
	stats, err := w.gpu.Stats()
	if err != nil {
		w.t.Fatal(err)
	}
	return stats.Files
}

func TestSuspendedLowIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := w.files()
	// The daemon keeps a few descriptors from the first program on, for resumes.
	first := w.low(options{})
	w.suspendByHand(first)
	_ = first.cmd.Process.Kill()
	eventually(t, soon, "the first program's file is released", func() bool { return w.files() == files })
	before := w.daemonFDs()
	eventually(t, soon, "the daemon's descriptors settle", func() bool {
		time.Sleep(50 * time.Millisecond)
		was := before
		before = w.daemonFDs()
		return before == was
	})
	low := w.low(options{})
	w.suspendByHand(low)
	if w.files() == files {
		t.Fatal("the device does not see the low's file")
	}
	if err := low.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	gone := eventually(t, soon, "the device's file is released", func() bool { return w.files() == files })
	t.Logf("released after %v", gone)
	eventually(t, soon, "no descriptor is left in the daemon", func() bool { return w.daemonFDs() <= before })
}

func TestSuspendedLowExecs(t *testing.T) {
	t.Parallel()
	path, err := scenarios()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	files := w.files()
	p := w.run(options{}, path, "exec", "800")
	p.expect(`{"scenario"`, soon)
	w.waitLevel(p.pid(), 3)
	w.suspendByHand(p)
	if w.files() == files {
		t.Fatal("the device does not see the program's file")
	}
	eventually(t, soon, "the program becomes sleep", func() bool {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.pid()))
		return strings.TrimSpace(string(name)) == "sleep"
	})
	gone := eventually(t, soon, "the device's file is released after exec", func() bool { return w.files() == files })
	t.Logf("released after %v", gone)
	eventually(t, soon, "the daemon forgets a process that became another program", func() bool { return w.process(p.pid()) == nil })
}

func TestStuckIoctlStallsNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stuck, other := w.low(options{}), w.low(options{})
	if err := w.gpu.SetFault("never-answer:" + strconv.Itoa(stuck.pid())); err != nil {
		t.Fatal(err)
	}
	if _, err := w.xsched("suspend", strconv.Itoa(stuck.pid())); err != nil {
		t.Logf("suspend of the stuck one: %v", err) // may time out; must not hang
	}
	w.suspendByHand(other)
	w.must("resume", strconv.Itoa(other.pid()))
	w.firstRun(other.pid(), nowNS(), 200*time.Millisecond)
	eventually(t, soon, "stats name the stuck process", func() bool {
		stats, err := w.client.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range stats.Targets {
			if target.PID == stuck.pid() && target.StuckForMS > 0 {
				return true
			}
		}
		return false
	})
	if err := w.gpu.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	other.finish()
}

func TestGracefulStopResumesEverybody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	high := w.tenant(options{priority: 10}, 90)
	low := w.low(options{})
	w.suspendByHand(low)
	at := nowNS()
	if err := w.serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	w.firstRun(low.pid(), at, 300*time.Millisecond)
	if err := w.serve.Wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
	w.assertNativeSlice(low.pid())
	for _, name := range []string{"xsched.sock", "control.sock"} {
		if _, err := os.Stat(w.path(name)); err == nil {
			t.Errorf("%s was left behind", name)
		}
	}
	low.finish()
	high.finish()
}

func TestLoseBlockIsDetected(t *testing.T) {
	t.Parallel()
	// The checksum must detect lost work, or the other tests prove nothing.
	w := newWorld(t)
	low := w.low(options{})
	if err := w.gpu.SetFault("lose-block"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.suspendByHand(low)
		w.must("resume", strconv.Itoa(low.pid()))
		at := nowNS()
		eventually(t, soon, "the low runs on", func() bool { return low.iterationsAfter(at) > 1 })
	}
	low.send("pause")
	low.expect("P", soon)
	low.send("report")
	line := strings.Fields(low.expect("S ", soon))
	if len(line) != 4 || line[2] == line[3] {
		t.Errorf("a device that loses work went unnoticed: %v", line)
	}
}
