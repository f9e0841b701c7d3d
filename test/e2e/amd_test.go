// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	vamd "xsched/internal/virtual/amd"
	vdevice "xsched/internal/virtual/device"
)

// amdWorld is a daemon on the virtual AMD GPU, with access to the device's timeline.
func amdWorld(t *testing.T, deviceArgs ...string) *world {
	t.Helper()
	w := hipWorld(t, deviceArgs...)
	eventually(t, soon, "the double tells what it did", func() (ok bool) {
		gpu, err := vdevice.Dial(w.path("kfd.sock") + vamd.WatchSuffix)
		if ok = err == nil; ok {
			w.gpu = gpu
		}
		return ok
	})
	t.Cleanup(func() { _ = w.gpu.Close() })
	return w
}

// TestAMDQueues: `xsched queues` merges the driver's and the shim's views, in every output format.
func TestAMDQueues(t *testing.T) {
	t.Parallel()
	w := amdWorld(t)
	p := w.tenant(options{}, 500, "--api", "hip")
	p.send("rate 50")
	w.waitLevel(p.pid(), 2)
	pid := strconv.Itoa(p.pid())
	type reply struct {
		AMD struct {
			Queues []struct {
				ID      int      `json:"id"`
				Ring    uint64   `json:"ring"`
				Bytes   uint64   `json:"bytes"`
				Sources []string `json:"sources"`
			} `json:"queues"`
		} `json:"amd"`
		Notes []struct{ Source, Text string } `json:"notes"`
	}
	read := func(args ...string) (r reply) {
		t.Helper()
		if err := json.Unmarshal([]byte(w.must(append([]string{"queues", pid, "--json"}, args...)...)), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	// The runtime creates rings on first use: one may appear between two reads, and within one.
	var both, shim reply
	eventually(t, soon, "the same queues from both", func() bool {
		both, shim = read("--root", w.path("kfd")), read()
		if len(both.AMD.Queues) < 2 || len(shim.AMD.Queues) != len(both.AMD.Queues) {
			return false
		}
		for _, q := range both.AMD.Queues {
			if len(q.Sources) != 3 {
				return false
			}
		}
		return true
	})
	for i, q := range shim.AMD.Queues {
		d := both.AMD.Queues[i]
		slices.Sort(d.Sources) // which source shows a new ring first is chance
		// The shim's record of a queue's creation must match the driver's dump.
		if q.ID != d.ID || q.Ring == 0 || q.Ring != d.Ring || q.Bytes != d.Bytes || strings.Join(q.Sources, "+") != "shim" || strings.Join(d.Sources, "+") != "mqds+shim+sysfs" {
			t.Errorf("%+v\n%+v", q, d)
		}
	}
	if len(shim.Notes) == 0 || shim.Notes[0].Source != "amdkfd" {
		t.Errorf("nothing says that the driver was not asked: %+v", shim.Notes)
	}
	if text := w.must("queues", pid); !strings.Contains(text, "Lv2 owner") || !strings.Contains(text, "1048576") {
		t.Error(text)
	}
	if text := w.must("queues", pid, "--format", "python"); !strings.Contains(text, "QUEUE_IDS = [0, 1") {
		t.Error(text)
	}
	if text := w.must("list"); !strings.Contains(text, "Lv2 owner") {
		t.Error(text)
	}
	if text := w.must("list", "--devices"); !strings.Contains(text, "amdkfd") || !strings.Contains(text, "gfx942") {
		t.Error(text)
	}
	p.finish()
}

// TestQueuesOfAnother: an unprivileged caller sees another user's contexts, no rings, and the reason.
func TestQueuesOfAnother(t *testing.T) {
	t.Parallel()
	cache := asNobody(t)
	w := amdWorld(t)
	for name, mode := range map[string]os.FileMode{"": 0o755, "control.sock": 0o666} {
		if err := os.Chmod(w.path(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	bin := copyFor(t, cache, xschedPath(t))
	p := w.tenant(options{}, 500, "--api", "hip")
	w.waitLevel(p.pid(), 2)
	cmd := execAs(bin, "queues", strconv.Itoa(p.pid()))
	cmd.Env = w.env("HOME=" + cache)
	out, err := cmd.CombinedOutput()
	if text := string(out); err != nil || !strings.Contains(text, "Lv2 owner") || strings.Contains(text, "1048576") || !strings.Contains(text, "belongs to uid 0") {
		t.Errorf("%v\n%s", err, text)
	}
	p.finish()
}

// TestAMDDaemonKilled: a suspended HIP program resumes when the daemon is killed or stopped, with correct
// results. The next daemon manages it again.
func TestAMDDaemonKilled(t *testing.T) {
	t.Parallel()
	w := amdWorld(t)
	p := w.tenant(options{}, 2000, "--api", "hip")
	p.send("loop")
	for _, end := range []func(){
		func() { w.killDaemon(); w.startDaemon("--platform", "amd") },
		func() { _ = w.serve.Process.Signal(unix.SIGSTOP) },
	} {
		w.waitLevel(p.pid(), 2)
		w.suspendByHand(p)
		w.assertStopped(p.pid(), "suspended")
		before := w.account(p.pid()).Kernels
		end()
		eventually(t, soon, "it runs again", func() bool { return w.account(p.pid()).Kernels > before+10 })
	}
	_ = w.serve.Process.Signal(unix.SIGCONT)
	w.must("resume", strconv.Itoa(p.pid()))
	p.finish()
}

// TestNVIDIAChannels: on NVIDIA, `xsched queues` shows channel groups and channels.
func TestNVIDIAChannels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.tenant(options{}, 500)
	p.send("rate 50")
	w.waitLevel(p.pid(), 3)
	pid := strconv.Itoa(p.pid())
	var r struct {
		NVIDIA []struct {
			ID      uint64
			Kind    string
			Details struct{ Group, Class uint64 }
		} `json:"nvidia"`
	}
	if err := json.Unmarshal([]byte(w.must("queues", pid, "--json")), &r); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, q := range r.NVIDIA {
		kinds[q.Kind]++
		if q.ID == 0 || q.Details.Class == 0 || q.Kind == "compute" && q.Details.Group == 0 {
			t.Errorf("%+v", q)
		}
	}
	if kinds["group"] < 2 || kinds["compute"] < 1 || kinds["copy"] < 1 {
		t.Errorf("%v", kinds)
	}
	if text := w.must("queues", pid); !strings.Contains(text, "CHANNEL") || !strings.Contains(text, "0xa06c") {
		t.Error(text)
	}
	p.finish()
}

// plainHIP starts a HIP program without the shim.
func (w *world) plainHIP() *program {
	w.t.Helper()
	cmd := exec.Command(product(w.t, "virtual/tenant"), "--name", "t", "--kernel-us", "20000", "--api", "hip")
	cmd.Env = w.env("LD_PRELOAD="+product(w.t, "virtual/libvkfd.so"),
		"LD_LIBRARY_PATH="+filepath.Dir(product(w.t, "virtual/libamdhip64.so.6")),
		"XSCHED_VKFD_SOCKET="+w.path("kfd.sock"), "XSCHED_VKFD_ROOT="+w.path("kfd"))
	p := w.drive(cmd)
	p.expect("R", soon)
	return p
}

// TestAMDAttachedDaemonStopped: an attached and suspended HIP program runs while the daemon is stopped, and is
// suspended again afterwards. It also runs when its tracer or the daemon is killed. No work is lost.
func TestAMDAttachedDaemonStopped(t *testing.T) {
	t.Parallel()
	w := amdWorld(t)
	low := w.plainHIP()
	low.send("loop")
	eventually(t, soon, "the low makes progress", func() bool { return low.iterationsAfter(0) > 1 })
	w.suspendByHand(low)
	if p := w.process(low.pid()); p == nil || !p.Attached {
		t.Fatalf("process = %+v, want attached", p)
	}
	tracers := guardians(t, w.dir)
	if len(tracers) != 1 {
		t.Fatalf("tracers %v, want one", tracers)
	}
	at := nowNS()
	if err := w.serve.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Logf("ran again %v after the daemon was stopped", w.firstRun(low.pid(), at, 200*time.Millisecond))
	eventually(t, soon, "the low runs on beside a stopped daemon", func() bool { return low.iterationsAfter(at) > 20 })
	if err := w.serve.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.assertStopped(low.pid(), "after the daemon went on")
	at = nowNS()
	if err := unix.Kill(tracers[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	t.Logf("ran again %v after its tracer was killed", w.firstRun(low.pid(), at, 200*time.Millisecond))
	w.assertStopped(low.pid(), "by another tracer")
	at = w.killDaemon()
	t.Logf("ran again %v after the daemon was killed", w.firstRun(low.pid(), at, 200*time.Millisecond))
	low.finish()
	eventually(t, soon, "the tracer ends", func() bool { return len(guardians(t, w.dir)) == 0 })
}

// TestAMDQueueVariables: AMD_QUEUE_TAG and AMD_QUEUE_PRIORITY rank programs that have no flags; the
// tag comes first, and XSched's own flag before both.
func TestAMDQueueVariables(t *testing.T) {
	t.Parallel()
	w := amdWorld(t)
	for _, c := range []struct {
		env, flags []string
		want       int32
	}{
		{want: 0},
		{env: []string{"AMD_QUEUE_PRIORITY=15"}, want: 8},
		{env: []string{"AMD_QUEUE_PRIORITY=2"}, want: -5},
		{env: []string{"AMD_QUEUE_PRIORITY=16"}, want: 0},
		{env: []string{"AMD_QUEUE_TAG=offline_ai", "AMD_QUEUE_PRIORITY=15"}, want: -10},
		{env: []string{"AMD_QUEUE_TAG=ONLINE_AI"}, want: 10},
		{env: []string{"AMD_QUEUE_TAG=training", "AMD_QUEUE_PRIORITY=7"}, want: 0},
		{env: []string{"AMD_QUEUE_TAG=ONLINE_AI", "AMD_QUEUE_PRIORITY=15"}, flags: []string{"--priority", "3"}, want: 3},
	} {
		args := append([]string{"run", "--virtual"}, c.flags...)
		cmd := exec.Command(xschedPath(t), append(args, "--", product(t, "virtual/tenant"), "--name", "t", "--kernel-us", "500", "--api", "hip")...)
		cmd.Env = w.env(c.env...)
		p := w.drive(cmd)
		p.expect("R", soon)
		p.send("rate 50")
		eventually(t, soon, "the program has joined", func() bool { return w.process(p.pid()) != nil })
		if got := w.process(p.pid()).Priority; got != c.want {
			t.Errorf("%v %v: priority %d, want %d", c.env, c.flags, got, c.want)
		}
		p.finish()
	}
}
