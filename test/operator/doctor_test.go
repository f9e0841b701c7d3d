// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"xsched/internal/doctor"
)

// compile builds a C program of testdata.
func compile(t *testing.T, source string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), strings.TrimSuffix(source, ".c"))
	argv := append([]string{"-std=gnu11", "-O1", "-Wall", "-Werror", "-o", out, "testdata/" + source}, flags...)
	if text, err := exec.Command("gcc", argv...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", strings.Join(argv, " "), err, text)
	}
	return out
}

// try runs `xsched doctor --json -- CMD`. CMD prints R when it is ready, and ends with its input, which
// ends when seen reports that the doctor had a look.
func (d *daemon) try(argv []string, input string, seen func() bool) (doctor.CommandReport, int) {
	d.t.Helper()
	cmd := exec.Command(product(d.t, "bin/xsched"), append([]string{"doctor", "--json", "--virtual", "--"}, argv...)...)
	cmd.Env = d.env()
	var out bytes.Buffer
	var errs lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	start(d.t, cmd)
	eventually(d.t, "the command is ready", func() bool { return strings.Contains(errs.String(), "R\n") })
	_, _ = io.WriteString(in, input)
	eventually(d.t, "the doctor had a look", seen)
	_ = in.Close()
	_ = cmd.Wait()
	var r doctor.CommandReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		d.t.Fatalf("%v\n%s%s", err, out.Bytes(), &errs)
	}
	return r, cmd.ProcessState.ExitCode()
}

// lockedBuffer collects the output of a process that still runs.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// suspends tells, from now on, whether the doctor has suspended a program and resumed it. That is no preemption if the
// program had no work at that moment, so the daemon's own count tells.
func (d *daemon) suspends(t *testing.T) (seen func() bool) {
	t.Helper()
	before, err := d.client.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return func() bool {
		now, err := d.client.Stats(context.Background())
		return err == nil && now.Suspends > before.Suspends && now.Resumes > before.Resumes
	}
}

// TestLongDoctorCommand: the doctor tells scheduled commands from those that bypass the shim.
func TestLongDoctorCommand(t *testing.T) {
	d := newDaemon(t)
	tenant := product(t, "build/virtual/tenant") + " --name t --kernel-us 2000"
	// Nothing shows that it looked at the others. It does so twenty times a second.
	later := func() bool {
		time.Sleep(2 * time.Second)
		return true
	}
	for name, c := range map[string]struct {
		argv   []string
		input  string
		ok     bool
		status doctor.Status // of the most important check
		words  []string
	}{
		"normal":         {strings.Fields(tenant), "loop\n", true, doctor.OK, []string{"launches", "tenant (pid"}},
		"behind a shell": {[]string{"sh", "-c", tenant + "; true"}, "loop\n", true, doctor.OK, []string{"launches", "tenant (pid"}},
		"static":         {[]string{compile(t, "hello.c", "-static")}, "", false, doctor.Missing, []string{"statically linked", "xsched attach"}},
		"no GPU":         {[]string{compile(t, "hello.c")}, "", false, doctor.Missing, []string{"used a GPU"}},
		"preload lost": {
			[]string{"sh", "-c", "LD_PRELOAD=" + product(t, "build/virtual/libvgpu.so") + " exec " + tenant},
			"loop\n", false, doctor.Missing,
			[]string{"0000:01:00.0", "without the shim", "LD_PRELOAD"},
		},
		"own symbols": {[]string{compile(t, "bypass.c", "-ldl")}, "", false, doctor.Missing, []string{"saw none of its calls"}},
	} {
		t.Run(name, func(t *testing.T) {
			seen := later
			if c.ok {
				seen = d.suspends(t)
			}
			r, code := d.try(c.argv, c.input, seen)
			if r.OK != c.ok || (code == 0) != c.ok || len(r.Checks) == 0 || r.Checks[0].Status != c.status {
				t.Fatalf("exit code %d, %+v", code, r)
			}
			line := r.Checks[0].Name + ": " + doctor.Line(r.Checks[0])
			for _, w := range c.words {
				if !strings.Contains(line, w) {
					t.Errorf("%q is not in %q", w, line)
				}
			}
		})
	}
}

// TestLongDoctorCommandAMD: the same on the other driver, where the shim suspends its own queues.
func TestLongDoctorCommandAMD(t *testing.T) {
	d := newDaemon(t, "--platform", "amd")
	r, code := d.try([]string{product(t, "build/virtual/tenant"), "--name", "t", "--kernel-us", "2000", "--api", "hip"}, "loop\n", d.suspends(t))
	if !r.OK || code != 0 || len(r.Processes) != 1 || r.Processes[0].Calls.Launches+r.Processes[0].Calls.Copies == 0 || r.Processes[0].Preemption != (doctor.Preemption{Tried: true, Level: 2}) {
		t.Errorf("exit code %d, %+v", code, r)
	}
}

// TestLongStoppedDaemon: commands say within 10 s that a daemon is stopped, instead of waiting for it.
func TestLongStoppedDaemon(t *testing.T) {
	d := newDaemon(t)
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"list", "doctor"} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		cmd := exec.CommandContext(ctx, product(t, "bin/xsched"), command)
		cmd.Env = d.env()
		text, err := cmd.CombinedOutput()
		late := ctx.Err()
		cancel()
		if late != nil {
			t.Errorf("xsched %s waits for the daemon", command)
		}
		if remedy := fmt.Sprintf("kill -CONT %d", d.cmd.Process.Pid); err == nil || !strings.Contains(string(text), remedy) || !strings.Contains(string(text), "is stopped") {
			t.Errorf("xsched %s: %v\n%s", command, err, text)
		}
	}
	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
