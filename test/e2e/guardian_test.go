// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// restartLimit is how soon a program runs again after a restart of the daemon or of the guardian.
const restartLimit = 200 * time.Millisecond

// startService starts the guardian as a service and waits until it listens.
func (w *world) startService() *exec.Cmd {
	w.t.Helper()
	cmd := exec.Command(xschedPath(w.t), "guardian", "--service")
	cmd.Env, cmd.Stderr = w.env(), w.log
	startOwn(w.t, cmd)
	eventually(w.t, soon, "the guardian listens", func() bool { return w.listens("guardian.sock") })
	return cmd
}

// killBoth kills daemon and guardian as one kill of their cgroup does.
func (w *world) killBoth() {
	w.t.Helper()
	stats, err := w.client.Stats(context.Background())
	if err != nil || stats.Guardian.PID == 0 {
		w.t.Fatalf("%+v %v", stats.Guardian, err)
	}
	// Neither may act on the end of the other one, however long this program is delayed in between.
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		_ = syscall.Kill(stats.Guardian.PID, sig)
		_ = w.serve.Process.Signal(sig)
	}
	w.killDaemon()
	w.client.Close()
}

// TestDaemonAndGuardianKilled: nobody is left to resume an attached program, so it stays suspended.
// It runs again as soon as the daemon restarts, or the guardian's service alone.
func TestDaemonAndGuardianKilled(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]func(w *world){
		"daemon":  func(w *world) { w.startDaemon() },
		"service": func(w *world) { w.startService() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			high := w.tenant(options{priority: 10}, 90) // its presence gives the low a tiny slice
			low := w.low(options{plain: true})
			w.must("attach", strconv.Itoa(low.pid()))
			eventually(t, soon, "the low has a tiny slice", func() bool { return w.account(low.pid()).SliceNS < nativeSliceNS })
			best := time.Hour
			for range 3 {
				w.suspendByHand(low)
				w.killBoth()
				w.assertStopped(low.pid(), "after daemon and guardian were killed")
				at := nowNS()
				restart(w)
				best = min(best, w.firstRun(low.pid(), at, 5*time.Second))
				w.assertNativeSlice(low.pid())
				if name != "daemon" {
					break
				}
			}
			t.Logf("ran again %v after the restart", best)
			if best > restartLimit {
				t.Errorf("ran again %v after the restart, want %v at most", best, restartLimit)
			}
			if name != "daemon" {
				w.startDaemon()
			}
			// The next attach starts from a known state.
			w.suspendByHand(low)
			out := w.must("detach", strconv.Itoa(low.pid()))
			w.firstRun(low.pid(), nowNS(), restartLimit)
			t.Logf("detach: %s", out)
			low.finish()
			high.finish()
		})
	}
}

// TestGuardianService: the daemon uses the service. A dead service is replaced, and once it is back
// the daemon returns to it. The service outlives the daemon and resumes its programs.
func TestGuardianService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	service := w.startService()
	low := w.low(options{plain: true})
	w.suspendByHand(low)
	guardian := func() int {
		stats, err := w.client.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return stats.Guardian.PID
	}
	if pid := guardian(); pid != service.Process.Pid {
		t.Fatalf("guarded by %d, the service is %d", pid, service.Process.Pid)
	}
	_ = service.Process.Kill()
	_ = service.Wait()
	eventually(t, soon, "another guardian", func() bool { pid := guardian(); return pid != 0 && pid != service.Process.Pid })
	w.assertStopped(low.pid(), "after the service died")
	again := w.startService()
	eventually(t, soon, "the daemon returns to the service", func() bool { return guardian() == again.Process.Pid })
	w.assertStopped(low.pid(), "after the service came back")
	at := w.killDaemon()
	t.Logf("ran again after %v", w.firstRun(low.pid(), at, restartLimit))
	w.assertNativeSlice(low.pid())
	// Nothing is left to recover: the service has removed the record.
	eventually(t, soon, "no record is left", func() bool {
		left, err := os.ReadDir(w.path("attached"))
		return err == nil && len(left) == 0
	})
	w.startDaemon()
	w.suspendByHand(low)
	w.must("detach", strconv.Itoa(low.pid()))
	if err := again.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := again.Wait(); err != nil {
		t.Errorf("service: %v", err)
	}
	low.finish()
}

// TestGuardianReplacedWithoutDescriptors: a daemon at its limit of open files replaces a dead guardian.
// The new one resumes the program when the daemon stops.
func TestGuardianReplacedWithoutDescriptors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	low := w.low(options{plain: true})
	w.suspendByHand(low)
	first := guardians(t, w.dir)
	if len(first) != 1 {
		t.Fatalf("guardians %v, want one", first)
	}
	pid := w.serve.Process.Pid
	files, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(files)), Max: 4096}, nil); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "another guardian", func() bool {
		now := guardians(t, w.dir)
		return len(now) == 1 && now[0] != first[0]
	})
	if log, err := os.ReadFile(w.log.Name()); err != nil || strings.Contains(string(log), "not guarded; trying again") {
		t.Errorf("the first attempt failed: %v\n%s", err, log)
	}
	time.Sleep(100 * time.Millisecond) // the process is handed over
	at := w.killDaemon()
	t.Logf("ran again after %v", w.firstRun(low.pid(), at, restartLimit))
	low.finish()
}
