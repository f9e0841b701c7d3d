// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xsched/internal/control/client"
)

// hipWorld is a daemon on the virtual AMD GPU.
func hipWorld(t *testing.T, deviceArgs ...string) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "xs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &world{t: t, dir: dir, client: client.New(filepath.Join(dir, "control.sock"))}
	w.openLog()
	w.device = exec.Command(xschedPath(t), append([]string{"vgpu", "--platform", "amd", "--socket", w.path("kfd.sock"), "--root", w.path("kfd")}, deviceArgs...)...)
	w.device.Stderr = w.log
	startOwn(t, w.device)
	eventually(t, soon, "the device process listens", func() bool { return w.listens("kfd.sock") })
	w.startDaemon("--platform", "amd")
	return w
}

// python runs testdata/hip.py and returns its results, and the shim's counters separately.
func (w *world) python(what string, shim bool) (found, beside string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	argv := []string{"python3", "-B", "testdata/hip.py", what}
	env := w.env()
	if shim {
		argv = append([]string{xschedPath(w.t), "run", "--virtual", "--"}, argv...)
	} else {
		env = append(env, "LD_PRELOAD="+product(w.t, "virtual/libvkfd.so"),
			"LD_LIBRARY_PATH="+filepath.Dir(product(w.t, "virtual/libamdhip64.so.6")),
			"XSCHED_VKFD_SOCKET="+w.path("kfd.sock"), "XSCHED_VKFD_ROOT="+w.path("kfd"))
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, "shim: "); ok {
			beside += text
		} else {
			found += line
		}
	}
	return found, beside
}

// TestHIP: HIP programs in Python compute the same with and without the shim, and the shim counts their work.
func TestHIP(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	w := hipWorld(t)
	for _, c := range []struct {
		what   string
		found  string // equal with and without the shim
		beside string
	}{
		{
			what:   "before", // children created before the parent uses HIP
			found:  strings.Repeat("fork child: right\n", 3) + strings.Repeat("spawn child: right\n", 3) + "end\n",
			beside: strings.Repeat("fork child has [('0100', 0, 21)]\n", 3) + strings.Repeat("spawn child has [('0100', 0, 21)]\n", 3) + "joined 0\n",
		},
		{
			what:   "after", // children created while several threads use HIP
			found:  strings.Repeat("fork child: hipSetDevice: 3\n", 3) + strings.Repeat("spawn child: right\n", 3) + "parent: right\nend\n",
			beside: strings.Repeat("spawn child has [('0100', 0, 21)]\n", 3) + "parent has [('0100', 0)]\njoined 1\n",
		},
		{
			what: "refused", // launches that the driver or the runtime rejects
			found: "a kernel with no such memory: 719\nlast error: 719\nno arguments: 1\nno grid: 1\n" +
				"a stub nobody registered: 98\nafterwards: right\nend\n",
			beside: "idle nothing counted\njoined 1\n",
		},
		{
			what:   "devices", // a stream's device, independent of the thread's
			found:  "both: right\nend\n",
			beside: "busy ['0100']\nbusy ['0100', '0200']\nbusy ['0100']\nbusy []\njoined 1\n",
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := *w
			w.t = t
			found, beside := w.python(c.what, true)
			if found != c.found {
				t.Errorf("wrong result: with the shim:\n%swant:\n%s", found, c.found)
			}
			if beside != c.beside {
				t.Errorf("the shim says:\n%swant:\n%s", beside, c.beside)
			}
			if plain, _ := w.python(c.what, false); plain != found {
				t.Errorf("wrong result: without the shim:\n%swith it:\n%s", plain, found)
			}
		})
	}
}

// TestHIPProgram: a linked C program gives the same results in every scheduling mode.
func TestHIPProgram(t *testing.T) {
	t.Parallel()
	w := hipWorld(t)
	program := filepath.Join(t.TempDir(), "hip")
	build := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-I"+root+"/shim", "-I"+root+"/shim/include", "-I"+root+"/build/gen",
		"-o", program, "testdata/hip.c", product(t, "virtual/libamdhip64.so.6"), "-lpthread")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const want = "ok launches\nok order\nok capture\nok default streams\nok host functions\nend\n"
	for _, c := range []struct {
		name string
		args []string
		env  string
	}{
		{name: "as it is"},
		{name: "at the gate", args: []string{"--level", "1"}},
		{name: "few in flight", args: []string{"--level", "1", "--in-flight", "1"}},
		{name: "few in flight, in batches", args: []string{"--level", "1", "--in-flight", "4", "--batch", "2"}},
		{name: "a queue each", env: "XSCHED_GRANULARITY=queue"},
		{name: "switched off", env: "XSCHED_DISABLE=1"},
		{name: "no daemon", env: "XSCHED_SOCKET=" + w.path("nobody.sock")},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			args := append(append([]string{"run", "--virtual"}, c.args...), "--", "env", "A="+c.name)
			if c.env != "" {
				args = append(args, c.env)
			}
			cmd := exec.CommandContext(ctx, xschedPath(t), append(args, program)...)
			cmd.Env = w.env()
			cmd.WaitDelay = 5 * time.Second
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
