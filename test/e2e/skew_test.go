// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gpumodel "xsched/internal/virtual/model"
)

// release is a build of XSched: `xsched run` of a release preloads that release's shim.
type release struct{ name, xsched string }

// previousFolder builds the previous release, unless tools/previous has done so before.
var previousFolder = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(filepath.Join(root, "tools", "previous")).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return strings.TrimSpace(string(exit.Stderr)), err
	}
	return strings.TrimSpace(string(out)), err
})

// releases returns this build and the previous release.
func releases(t *testing.T) (now, previous release) {
	t.Helper()
	folder, err := previousFolder()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skip(folder)
	}
	if err != nil {
		t.Fatalf("build the previous release: %v\n%s", err, folder)
	}
	return release{"now", xschedPath(t)}, release{"previous", filepath.Join(folder, "bin", "xsched")}
}

// startDaemonOf starts `xsched serve` of a release and waits until it answers.
func (w *world) startDaemonOf(r release, args ...string) {
	w.t.Helper()
	w.serve = exec.Command(r.xsched, append([]string{"serve", "--virtual"}, args...)...)
	w.serve.Env = w.env()
	w.serve.Stderr = w.log
	startOwn(w.t, w.serve)
	eventually(w.t, soon, "the daemon answers", func() bool {
		v, err := w.client.Version(context.Background())
		return err == nil && v.PID == w.serve.Process.Pid
	})
}

// stopDaemon ends the daemon with a signal and returns the time.
func (w *world) stopDaemon(signal syscall.Signal) int64 {
	w.t.Helper()
	at := nowNS()
	if err := w.serve.Process.Signal(signal); err != nil {
		w.t.Fatal(err)
	}
	_ = w.serve.Wait()
	w.client.Close()
	return at
}

// tenantOf starts a tenant under a release's shim.
func (w *world) tenantOf(r release, priority, kernelUS int, args ...string) *program {
	w.t.Helper()
	cmd := exec.Command(r.xsched, append([]string{
		"run", "--virtual", "--priority", fmt.Sprint(priority), "--",
		product(w.t, "virtual/tenant"), "--name", r.name, "--kernel-us", fmt.Sprint(kernelUS),
	}, args...)...)
	cmd.Env = w.env()
	p := w.drive(cmd)
	p.expect("R", soon)
	return p
}

// protected waits until the daemon protects the high: each low is at Lv3 with a tiny timeslice. It
// returns how long that took. Each low must then yield in mid-kernel, when its turn comes.
func (w *world) protected(limit time.Duration, high *program, lows ...*program) time.Duration {
	w.t.Helper()
	before := map[int]uint64{}
	for _, low := range lows {
		before[low.pid()] = w.account(low.pid()).Preemptions
	}
	took := eventually(w.t, limit, "every low is at Lv3 with a tiny timeslice", func() bool {
		p := w.process(high.pid())
		return p != nil && p.Counters.Launches > 0 && !slices.ContainsFunc(lows, func(low *program) bool {
			p := w.process(low.pid())
			return p == nil || len(p.Queues) == 0 || p.Queues[0].Level != 3 || w.account(low.pid()).SliceNS >= nativeSliceNS
		})
	})
	for _, low := range lows {
		eventually(w.t, soon, "the low yields in mid-kernel", func() bool {
			return w.account(low.pid()).Preemptions > before[low.pid()]
		})
	}
	return took
}

// suspends stops and resumes a process at Lv3. The device has counted calls since before, from when
// on this daemon runs.
func (w *world) suspends(p *program, before gpumodel.Account) {
	w.t.Helper()
	w.suspendByHand(p)
	w.must("resume", strconv.Itoa(p.pid()))
	w.firstRun(p.pid(), nowNS(), time.Second)
	if a := w.account(p.pid()); a.Disables == before.Disables || a.Enables == before.Enables {
		w.t.Errorf("process %d: %d disables, %d enables, no more than before", p.pid(), a.Disables, a.Enables)
	}
}

// Daemon and shim of neighbouring releases work together: interception, preemption in mid-kernel,
// results.
func TestVersionSkew(t *testing.T) {
	t.Parallel()
	now, previous := releases(t)
	for _, c := range []struct{ daemon, shim release }{{now, previous}, {previous, now}} {
		t.Run(c.daemon.name+" daemon, "+c.shim.name+" shim", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.stopDaemon(syscall.SIGTERM)
			w.startDaemonOf(c.daemon)
			low, high := w.tenantOf(c.shim, 0, 20000), w.tenantOf(c.shim, 10, 500)
			low.send("loop")
			w.waitLevel(low.pid(), 3)
			high.send("rate 20")
			w.protected(10*time.Second, high, low)
			w.suspends(low, gpumodel.Account{})
			w.checkCommands(now, previous)
			high.finish()
			low.finish()
			if text, _ := os.ReadFile(w.path("serve.log")); strings.Contains(string(text), "malformed") {
				t.Errorf("log:\n%s", text)
			}
		})
	}
}

// The same where the shim executes the daemon's orders: it stops and resumes its own queues.
func TestVersionSkewAMD(t *testing.T) {
	t.Parallel()
	now, previous := releases(t)
	for _, c := range []struct{ daemon, shim release }{{now, previous}, {previous, now}, {now, now}} {
		t.Run(c.daemon.name+" daemon, "+c.shim.name+" shim", func(t *testing.T) {
			t.Parallel()
			// The previous release's stand-in for HIP creates queues without save areas, which drivers
			// before 1.17 accept.
			w := amdWorld(t, "--driver", "1.16")
			w.stopDaemon(syscall.SIGTERM)
			w.startDaemonOf(c.daemon, "--platform", "amd")
			p := w.tenantOf(c.shim, 0, 500, "--api", "hip")
			p.send("loop")
			w.waitLevel(p.pid(), 2)
			w.suspendByHand(p)
			time.Sleep(300 * time.Millisecond) // three times as long as a lease lasts by itself
			w.assertStopped(p.pid(), "with its lease extended")
			at := w.stopDaemon(syscall.SIGKILL)
			w.firstRun(p.pid(), at, 500*time.Millisecond)
			p.finish()
		})
	}
}

// checkCommands runs commands of both releases against this world's daemon: each gives a result, or
// one line that says why not.
func (w *world) checkCommands(releases ...release) {
	w.t.Helper()
	for _, r := range releases {
		for _, args := range [][]string{{"list"}, {"list", "--json"}, {"version"}, {"policy"}} {
			cmd := exec.Command(r.xsched, args...)
			cmd.Env = w.env()
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil && strings.Count(strings.TrimSpace(stderr.String()), "\n") > 0 || err == nil && len(out) == 0 {
				w.t.Errorf("%s xsched %v: %v\n%s%s", r.name, args, err, out, stderr.String())
			}
		}
	}
}

// The daemon is replaced by the other release, in both directions, while programs of both shims run:
// nobody loses work, everybody rejoins, and the important one is protected again.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	now, previous := releases(t)
	for _, c := range []struct {
		from, to release
		signal   syscall.Signal
	}{
		{previous, now, syscall.SIGTERM},
		{now, previous, syscall.SIGTERM},
		{previous, now, syscall.SIGKILL},
		{now, previous, syscall.SIGKILL},
	} {
		t.Run(fmt.Sprintf("%s to %s, %v", c.from.name, c.to.name, c.signal), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.stopDaemon(syscall.SIGTERM)
			w.startDaemonOf(c.from)
			lows := []*program{w.tenantOf(now, 0, 5000), w.tenantOf(previous, 0, 5000)}
			high := w.tenantOf(c.from, 10, 500)
			for _, low := range lows {
				low.send("loop")
				w.waitLevel(low.pid(), 3)
			}
			high.send("rate 20")
			w.protected(10*time.Second, high, lows...)

			at := w.stopDaemon(c.signal)
			for _, low := range lows { // a suspension at that moment ends
				w.firstRun(low.pid(), at, 500*time.Millisecond)
			}
			before := []gpumodel.Account{w.account(lows[0].pid()), w.account(lows[1].pid())}
			w.startDaemonOf(c.to)
			started := nowNS()
			joined := eventually(t, soon, "all rejoin", func() bool {
				return w.process(high.pid()) != nil && w.process(lows[0].pid()) != nil && w.process(lows[1].pid()) != nil
			})
			protected := w.protected(3*time.Second, high, lows...)
			t.Logf("rejoined after %v, protected after %v", joined, joined+protected)
			for i, low := range lows {
				w.suspends(low, before[i])
			}

			// A program of each shim that starts now is protected from them, too.
			late := []*program{w.tenantOf(now, 5, 500), w.tenantOf(previous, 5, 500)}
			for _, p := range late {
				p.send("rate 20")
			}
			w.protected(10*time.Second, late[0], lows...)
			w.protected(10*time.Second, late[1], lows...)
			for _, p := range append(append(slices.Clone(lows), high), late...) {
				if p.iterationsAfter(started) == 0 {
					t.Errorf("process %d made no progress", p.pid())
				}
				p.finish()
			}
		})
	}
}
