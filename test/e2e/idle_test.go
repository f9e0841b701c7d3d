// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// start runs a scenario of testdata/scenarios.c.
func (w *world) start(o options, name string, args ...string) *program {
	w.t.Helper()
	path, err := scenarios()
	if err != nil {
		w.t.Fatal(err)
	}
	return w.run(o, append([]string{path, name}, args...)...)
}

// settled waits until the program has finished and the daemon sees it idle, and returns its busy periods.
func (w *world) settled(p *program, limit time.Duration) (busyPeriods int) {
	w.t.Helper()
	p.expect(`{"done"`, limit)
	eventually(w.t, soon, "the daemon sees it idle", func() bool {
		s := w.process(p.pid())
		return s != nil && len(s.Queues) == 1 && !s.Queues[0].Busy
	})
	s := w.process(p.pid())
	return int(s.Queues[0].Transitions+1) / 2
}

// assertProof checks that the shim counted every kernel that the device executed.
func (w *world) assertProof(p *program, atLeast uint64) {
	w.t.Helper()
	// The helper thread publishes counters periodically.
	eventually(w.t, soon, "launches counted equal kernels executed", func() bool {
		s := w.process(p.pid())
		return s != nil && s.Counters.Launches == w.account(p.pid()).Kernels && s.Counters.Launches >= atLeast
	})
}

func (w *world) endWell(p *program) {
	w.t.Helper()
	if err := p.wait(soon); err != nil {
		w.t.Errorf("program: %v; stderr: %s", err, p.stderr())
	}
}

func TestIdleByPollingEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start(options{}, "poll-events", "50")
	if n := w.settled(p, 10*time.Second); n != 50 {
		t.Errorf("%d busy periods, want 50: one a polled kernel", n)
	}
	w.assertProof(p, 50)
	w.endWell(p)
}

func TestIdleWithoutAnySync(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const kernels = 50
	p := w.start(options{}, "never-sync", strconv.Itoa(kernels))
	for i := range kernels {
		p.send("")
		eventually(t, soon, fmt.Sprintf("the watcher sees the end of kernel %d", i), func() bool {
			s := w.process(p.pid())
			return s != nil && len(s.Queues) == 1 && !s.Queues[0].Busy && s.Queues[0].Transitions == uint64(2*(i+1))
		})
	}
	w.settled(p, 10*time.Second)
	w.assertProof(p, kernels)
	w.endWell(p)
}

func TestCaptureWhileWatcherRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start(options{}, "capture", "10000")
	w.settled(p, 60*time.Second)
	eventually(t, soon, "10,000 captured launches are counted", func() bool {
		return w.process(p.pid()).Counters.Captured == 10000
	})
	w.endWell(p)
}

func TestStreamsDestroyedWithWorkPending(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start(options{}, "destroy-pending", "200")
	w.settled(p, 20*time.Second)
	w.assertProof(p, 200)
	w.endWell(p)
}

func TestThousandStreamsOfAllKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start(options{}, "many-streams", "1000")
	w.settled(p, 30*time.Second)
	w.assertProof(p, 1016) // 1,000 created, 8 per-thread, 8 on the legacy stream
	w.endWell(p)
}

func TestForkBeforeAndAfterCUDA(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start(options{}, "fork", "40")
	p.expect(`{"done"`, soon)
	w.assertProof(p, 80)
	w.endWell(p)
}

func TestSecondDeviceIsFoundByPCIAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct{ visible, ordinal, device string }{
		{"0,1", "0", "0000:01:00.0"},
		{"0,1", "1", "0000:02:00.0"},
		{"1,0", "0", "0000:02:00.0"},
		{"1,0", "1", "0000:01:00.0"},
		{"1", "0", "0000:02:00.0"},
		{"GPU-58536368-6564-2076-6972-7475616c0002", "0", "0000:02:00.0"},
		{"GPU-58536368-6564-2076-6972-7475616c0002,0", "1", "0000:01:00.0"},
	} {
		p := w.start(options{env: []string{"CUDA_VISIBLE_DEVICES=" + c.visible}}, "work", "5", c.ordinal)
		p.expect(`{"done"`, soon)
		w.waitLevel(p.pid(), 3) // Lv3 requires that the RM objects are on the same GPU
		if s := w.process(p.pid()); s.Queues[0].Device != c.device {
			t.Errorf("CUDA_VISIBLE_DEVICES=%s, device %s: %s, want %s", c.visible, c.ordinal, s.Queues[0].Device, c.device)
		}
		w.endWell(p)
	}
}

func TestShellUnderPreloadGetsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	script := `ls /proc/$$/task | wc -l; ls -l /proc/$$/fd | grep -c socket; echo end`
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = w.env("LD_PRELOAD="+product(t, "libxsched.so"), "XSCHED_SOCKET="+w.path("xsched.sock"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := strings.Fields(string(out)); len(got) != 3 || got[0] != "1" || got[1] != "0" {
		t.Errorf("threads, sockets: %q, want 1 and 0", got)
	}
}

func TestDisabledShimIsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start(options{env: []string{"XSCHED_DISABLE=1"}}, "work", "20")
	p.expect(`{"done"`, soon)
	if s := w.process(p.pid()); s != nil {
		t.Errorf("a disabled shim joined: %+v", s)
	}
	if k := w.account(p.pid()).Kernels; k != 20 {
		t.Errorf("%d kernels executed, want 20", k)
	}
	if n := threads(t, p.pid()); n != 1 {
		t.Errorf("%d threads, want 1", n)
	}
	w.endWell(p)
}

func threads(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestLogGoesOnlyWhereItIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := filepath.Join(w.dir, "shim.log")
	p := w.start(options{env: []string{"XSCHED_LOG=" + file, "XSCHED_LOG_LEVEL=debug"}}, "work", "5")
	p.expect(`{"done"`, soon)
	w.endWell(p)
	if text, err := os.ReadFile(file); err != nil || len(text) == 0 {
		t.Errorf("log: %v, %d bytes", err, len(text))
	}
	if p.stderr() != "" {
		t.Errorf("stderr: %q", p.stderr())
	}
}
