// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"xsched/internal/control/client"
	"xsched/internal/control/upstream"
	"xsched/internal/driver/nvidia/abi"
	vdevice "xsched/internal/virtual/device"
)

// withXcli starts a daemon with HTTP on a free port and returns `xcli` for it.
func withXcli(t *testing.T, serveArgs ...string) (*world, func(args ...string) string) {
	t.Helper()
	w := newWorld(t, append([]string{"--http", "127.0.0.1:0"}, serveArgs...)...)
	var port string
	eventually(t, 10*time.Second, "the daemon reports its port", func() bool {
		text, _ := os.ReadFile(w.path("serve.log"))
		if m := regexp.MustCompile(`http=127\.0\.0\.1:(\d+)`).FindSubmatch(text); m != nil {
			port = string(m[1])
		}
		return port != ""
	})
	tool := w.path("xcli")
	if err := os.Symlink(xschedPath(t), tool); err != nil {
		t.Fatal(err)
	}
	return w, func(args ...string) string {
		t.Helper()
		cmd := exec.Command(tool, append([]string{"-p", port}, args...)...)
		cmd.Env = w.env()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("xcli %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
}

// TestUpstreamStatus: upstream's tools see a program that a tiny timeslice keeps from the GPU as suspended, our
// policies as upstream's nearest, and the timeslice that was set instead of one that is too short.
func TestUpstreamStatus(t *testing.T) {
	t.Parallel()
	w, xcli := withXcli(t, "--starvation-bound", "0")
	const forever = 60_000_000 // us, a kernel that outlasts the test
	high, low := w.tenant(options{priority: 10}, forever, "--depth", "2"), w.tenant(options{}, 2000, "--depth", "2")
	for _, p := range []*program{high, low} {
		w.waitLevel(p.pid(), 3)
		p.send("loop")
	}
	eventually(t, 20*time.Second, "the low program is shown as suspended although no channel is stopped", func() bool {
		before, p := w.account(low.pid()), w.process(low.pid())
		if p == nil || p.Queues[0].State != "yielding" || p.Queues[0].SliceUS != 1 {
			return false
		}
		shown := regexp.MustCompile(fmt.Sprintf(`(?m)^ *%d +\S+ +\S+ +RDY +SUS `, low.pid())).MatchString(xcli("list"))
		after := w.account(low.pid())
		return shown && after.Stopped == 0 && after.Kernels == before.Kernels
	})
	if list := xcli("list"); !regexp.MustCompile(fmt.Sprintf(`(?m)^ *%d +\S+ +\S+ +RDY +RUN `, high.pid())).MatchString(list) {
		t.Errorf("the high program does not run:\n%s", list)
	}
	for name, near := range map[string]string{"FIFO": "HPF", "RR": "PUP", "EDF": "KEDF", "SLO": "HPF", "UP": "UP"} {
		xcli("policy", "-s", "-n", name)
		if shown := xcli("policy", "-q"); !strings.Contains(shown, "Current policy:\n  "+name+"\n") {
			t.Errorf("policy %s: %s", name, shown)
		}
		var got upstream.PolicyReply
		if err := json.Unmarshal([]byte(w.get(t, "/policy")), &got); err != nil || upstream.PolicyName(got.Number) != near {
			t.Errorf("policy %s: upstream's tools see %+v (%v), want %s", name, got, err, near)
		}
	}
	for us, want := range map[string]int64{"50": 100, "5000": 5000, "20000000": 10_000_000} {
		shown := xcli("hint", "-t", us)
		now, err := w.client.Policy(t.Context())
		if err != nil || now.QuantumUS != want || strings.Contains(shown, "Note: ") != (us != "5000") {
			t.Errorf("timeslice %s: %d, want %d (%v); %s", us, now.QuantumUS, want, err, shown)
		}
	}
}

// TestConfigWaits: a level is in force when /config answers. The process is stopped at level 3; level 1 means that its
// channels run and its gate holds it. While its GPU hangs there is no answer, though programs of another GPU get one.
func TestConfigWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, other := w.tenant(options{}, 500, "--depth", "2"), w.tenant(options{}, 500, "--device", "1")
	config := func(p *program, level int) string {
		handle := upstream.HandleText(upstream.HandleOf(w.process(p.pid()).Session, 0))
		status, text := w.postTo(t, fmt.Sprintf("/config/%s?level=%d", handle, level), nil)
		return fmt.Sprint(status, " ", strings.TrimSpace(text))
	}
	const success = `200 {"info":"success"}`
	for _, p := range []*program{p, other} {
		w.waitLevel(p.pid(), 3)
		p.send("loop")
	}
	w.must("suspend", fmt.Sprint(p.pid()))
	eventually(t, 10*time.Second, "its channels are stopped", func() bool { return w.account(p.pid()).Stopped > 0 })
	if err := w.gpu.SetFault("hang-gpu:0"); err != nil {
		t.Fatal(err)
	}
	before := w.account(p.pid())
	answered := make(chan string, 1)
	go func() { answered <- config(p, 1) }()
	eventually(t, 10*time.Second, "the GPU has the request", func() bool {
		stats, err := w.gpu.Stats()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(stats.Held, func(h vdevice.Held) bool {
			return h.Command == abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS // enables, too
		})
	})
	for _, level := range []int{1, 2, 1, 3} {
		if text := config(other, level); text != success {
			t.Errorf("config -l %d on the other GPU: %s", level, text)
		}
	}
	select {
	case text := <-answered:
		t.Errorf("config answered %q while the GPU hangs", text)
		answered <- text
	default:
	}
	if err := w.gpu.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	if text := <-answered; text != success {
		t.Errorf("config -l 1: %s", text)
	}
	if after := w.account(p.pid()); after.Enables == before.Enables {
		t.Errorf("level 1 has %d channels stopped when config answers", after.Stopped)
	}
	before = w.account(p.pid())
	if text := config(p, 3); text != success {
		t.Errorf("config -l 3: %s", text)
	}
	if after := w.account(p.pid()); after.Disables == before.Disables {
		t.Error("level 3 has not stopped the channels when config answers")
	}
	w.must("resume", fmt.Sprint(p.pid()))
	other.finish()
	p.finish()
}

// TestUpstreamEnvironment: XSCHED_POLICY alone selects a private scheduler, even against XSCHED_SCHEDULER. Variables
// without effect are named once, with what to use instead: by `xsched run`, and in the log of the shim.
func TestUpstreamEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := w.path("shim.log")
	p := w.tenant(options{env: []string{
		"XSCHED_DIR=", "XDG_RUNTIME_DIR=" + w.dir, "XSCHED_LOG=" + log, "XSCHED_LOG_LEVEL=warn", "XSCHED_POLICY=RR", "XSCHED_SCHEDULER=GLB",
		"XSCHED_AUTO_XQUEUE_KDEADLINE=5", "XSCHED_AUTO_XQUEUE_TIMESLICE=7", "XSCHED_SCHEDULER_SUSPEND_SYNC_HWQ=ON",
		"XSCHED_SCHEDULER_SUSPEND_WAIT_ALL=OFF", "XSCHED_LEVELZERO_LIB=/usr/lib/libze_loader.so.1",
	}}, 500)
	p.send("loop")
	p.iterates(3)
	folders, err := filepath.Glob(w.path("xsched-local-*"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("private folders %v, %v", folders, err)
	}
	private := client.New(filepath.Join(folders[0], "control.sock"))
	defer private.Close()
	eventually(t, 10*time.Second, "the private scheduler has the program, its policy and its hints", func() bool {
		list, err := private.List(t.Context())
		return err == nil && list.Policy == "RR" && len(list.Processes) == 1 && list.Processes[0].PID == p.pid() &&
			list.Processes[0].Hints.K == 5 && list.Processes[0].Hints.TimesliceUS == 100
	})
	if w.process(p.pid()) != nil {
		t.Error("the daemon of all has it")
	}
	logged, err := os.ReadFile(log)
	if err != nil {
		t.Error(err)
	}
	for place, text := range map[string]string{"run": p.stderr(), "the shim": string(logged)} {
		for name, want := range map[string]int{
			"SUSPEND_SYNC_HWQ has no effect: use XSCHED_AUTO_XQUEUE_LEVEL=3": 1,
			"XSCHED_LEVELZERO_LIB has no effect":                             1,
			"SUSPEND_WAIT_ALL":                                               0,
		} {
			if n := strings.Count(text, name); n != want {
				t.Errorf("%s says %q %d times, want %d:\n%s", place, name, n, want, text)
			}
		}
	}
	if !strings.Contains(p.stderr(), "XSCHED_SCHEDULER=GLB is ignored") || !strings.Contains(string(logged), "XSCHED_AUTO_XQUEUE_TIMESLICE=7 is set to 100") {
		t.Errorf("run: %s\nshim: %s", p.stderr(), logged)
	}
	p.finish()
}
