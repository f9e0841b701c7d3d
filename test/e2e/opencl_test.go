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

// openCL builds testdata/opencl.c, or skips the test without an OpenCL implementation.
func openCL(t *testing.T) string {
	t.Helper()
	return buildOpenCL(t, "opencl.c")
}

func buildOpenCL(t *testing.T, source string, flags ...string) string {
	t.Helper()
	if _, err := os.Stat("/usr/include/CL/cl.h"); err != nil {
		t.Skip("no OpenCL headers; run `make setup`")
	}
	out := filepath.Join(t.TempDir(), "opencl")
	cmd := exec.Command("gcc", append(flags, "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-o", out, "testdata/"+source, "-lOpenCL")...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", source, err, text)
	}
	return out
}

// openCLProgram starts a program under the shim, on the device that it selects.
func (w *world) openCLProgram(argv ...string) *program {
	cmd := exec.Command(xschedPath(w.t), append([]string{"run", "--"}, argv...)...)
	cmd.Env = w.env()
	return w.drive(cmd)
}

// native runs a program without the shim and returns its output.
func native(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// TestOpenCL: on a real implementation (PoCL) programs compute the same with the shim as without,
// in queues of both orders, and the shim counts every launch.
func TestOpenCL(t *testing.T) {
	t.Parallel()
	program := openCL(t)
	w := newWorld(t)
	want := native(t, program, "sum")
	if strings.Count(want, "checksum") != 2 || strings.Count(want, "refused -") != 2 {
		t.Fatalf("native: %s", want)
	}
	if got := w.must("run", "--", program, "sum"); got != want {
		t.Errorf("wrong result: with the shim:\n%s\nwithout:\n%s", got, want)
	}

	// Work that the program never waits for: the watcher finds its end.
	p := w.openCLProgram(program, "stay")
	p.expect("submitted", soon)
	eventually(t, soon, "the queue is idle again", func() bool {
		q := w.process(p.pid())
		return q != nil && len(q.Queues) == 1 && !q.Queues[0].Busy && q.Counters.Launches == 2*22+1
	})
	if q := w.process(p.pid()).Queues[0]; q.Level != 1 {
		t.Errorf("level %d, want 1: OpenCL has no other", q.Level)
	}
	_ = p.in.Close()
}

// TestOpenCLPreemption: a suspended OpenCL program makes no progress, and continues when resumed.
func TestOpenCLPreemption(t *testing.T) {
	t.Parallel()
	program := openCL(t)
	w := newWorld(t)
	p := w.openCLProgram(program, "spin")
	p.expect("ready", soon)
	eventually(t, soon, "it works", func() bool { return p.iterationsAfter(0) > 20 })
	w.must("suspend", strconv.Itoa(p.pid()))
	// One launch may have passed the gate before it closed.
	held := p.iterationsAfter(0) + 1
	eventually(t, soon, "the daemon shows it suspended", func() bool {
		q := w.process(p.pid())
		return q != nil && len(q.Queues) == 1 && q.Queues[0].State == "held"
	})
	for range 20 {
		time.Sleep(10 * time.Millisecond) // a longer suspension must not show progress either
		if n := p.iterationsAfter(0); n > held {
			t.Fatalf("%d iterations while suspended", n-held)
		}
	}
	w.must("resume", strconv.Itoa(p.pid()))
	eventually(t, soon, "it goes on", func() bool { return p.iterationsAfter(0) > held+20 })
	_ = p.in.Close()
}

// TestLongOpenCLGuests: queues that go while their work runs, commands that wait for the program itself
// under a limit, and a device that executes inside the enqueue call.
func TestLongOpenCLGuests(t *testing.T) {
	t.Parallel()
	program := openCL(t)
	w := newWorld(t)
	for _, c := range []struct {
		env  string
		args []string
		want string
	}{
		{"", []string{"run", "--", program, "churn"}, "references equal\n"},
		{"", []string{"run", "--level", "1", "--in-flight", "2", "--", program, "user"}, "done\n"},
		{"POCL_DEVICES=basic", []string{"run", "--", program, "sum"}, native(t, program, "sum")},
		{"POCL_DEVICES=basic", []string{"run", "--", program, "churn"}, "references equal\n"},
	} {
		cmd := exec.CommandContext(t.Context(), xschedPath(t), c.args...)
		cmd.Env = w.env(c.env)
		cmd.WaitDelay = time.Minute
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != c.want {
			t.Errorf("%s xsched %s: %v\n%s\nwant: %s", c.env, strings.Join(c.args, " "), err, out, c.want)
		}
	}
}

// TestOpenCLTools: clinfo and a pyopencl program run unchanged.
func TestOpenCLTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := exec.LookPath("clinfo"); err != nil {
		t.Skip("no clinfo; run `make setup`")
	}
	if want, got := native(t, "clinfo"), w.must("run", "--", "clinfo"); got != want {
		t.Errorf("clinfo differs under the shim:\n%s\nwithout:\n%s", got, want)
	}
	python := "/usr/bin/python3" // Debian's pyopencl needs Debian's Python
	if exec.Command(python, "-c", "import pyopencl").Run() != nil {
		t.Skip("no pyopencl; run `make setup`")
	}
	if got := w.must("run", "--", python, "-B", "testdata/opencl.py"); got != "equal True\n" {
		t.Errorf("pyopencl: %s", got)
	}
}

// TestOpenCLUserEventsLock: why OpenCL has no batches (docs/strategies.md). A batch must open without a lock that a launching
// thread may hold, and to set a user event takes such locks.
func TestOpenCLUserEventsLock(t *testing.T) {
	t.Parallel()
	text := native(t, buildOpenCL(t, "user_event.c", "-rdynamic"))
	common, all := 0, 0
	if _, err := fmt.Sscanf(text, "%d of %d", &common, &all); err != nil || common == 0 {
		t.Errorf("locks that a launch takes, too, of those to set a user event: %q (%v); without any, batches would be worth a try", text, err)
	}
	t.Logf("locks that a launch takes, too, of those to set a user event: %s", text)
}
