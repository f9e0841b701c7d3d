// SPDX-License-Identifier: Apache-2.0

package amd_test

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/driver/amd"
	vamd "xsched/internal/virtual/amd"
	"xsched/internal/virtual/amd/kfdtest"
)

// gpreemptSources is the library without its examples.
var gpreemptSources = []string{"shim/gpreempt/gpreempt.c", "shim/gpreempt/agent.c", "shim/gpreempt/list.c", "shim/gpreempt/machine.c", "shim/gpreempt/mqds.c"}

func buildWithGpreempt(t *testing.T, name, flags, source string) string {
	t.Helper()
	return kfdtest.Build(t, name, flags+" -Ishim/gpreempt", append([]string{source, "-lpthread"}, gpreemptSources...)...)
}

// buildAsUser builds the scheduler against installed files only.
func buildAsUser(t *testing.T) string {
	t.Helper()
	stage := t.TempDir()
	install := exec.Command("make", "-s", "-C", "../../..", "install-gpreempt", "DESTDIR="+stage, "PREFIX=/usr")
	install.Env = append(os.Environ(), "MAKEFLAGS=") // not those of a make that runs this test
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	program := filepath.Join(stage, "scheduler")
	build := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-I"+stage+"/usr/include", "../../../shim/gpreempt/scheduler.c",
		"-o", program, "-L"+stage+"/usr/lib", "-lgpreempt_poc", "-Wl,-rpath,"+stage+"/usr/lib")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

// TestGpreemptQueues tests the functions for all processes, with one build of each program.
func TestGpreemptQueues(t *testing.T) {
	g := gpreempt{Device: kfdtest.Serve(t, vamd.DefaultConfig())}
	g.target = kfdtest.Build(t, "kfdtarget", "", "shim/virtual/kfdtarget.c")
	g.scheduler = buildAsUser(t)
	g.tests = buildWithGpreempt(t, "test_machine", "-fsanitize=address,undefined -fno-sanitize-recover=all", "shim/gpreempt/test_machine.c")
	t.Run("real dump", g.realDump)
	t.Run("functions", g.functions)
	g.awaitNobody(t)
	t.Run("ended", g.ended)
	g.awaitNobody(t)
	t.Run("orphan", g.orphan)
	g.awaitNobody(t)
	t.Run("scheduler", g.schedule)
}

type gpreempt struct {
	*kfdtest.Device
	target, scheduler, tests string // programs
}

// awaitNobody waits until the driver has noticed the end of all programs.
func (g gpreempt) awaitNobody(t *testing.T) {
	t.Helper()
	g.await(t, "*")
}

func (g gpreempt) await(t *testing.T, gone string) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(g.Root, amd.SysfsRoot, "proc", gone))
		if err == nil && len(left) == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d programs are still listed, %v", len(left), err)
		}
	}
}

// targetWith starts the test program with a driver's priority and environment variables.
func (g gpreempt) targetWith(t *testing.T, priority string, env ...string) *kfdtest.Program {
	t.Helper()
	cmd := g.Command(t, g.target, "priority", priority)
	cmd.Env = append(cmd.Env, env...)
	p := g.Run(t, cmd)
	if line := p.Line(); !strings.HasPrefix(line, "ready ") {
		t.Fatal(line)
	}
	return p
}

// functions runs the C tests with ASan.
func (g gpreempt) functions(t *testing.T) {
	low := g.targetWith(t, "7", "AMD_QUEUE_PRIORITY=2", "AMD_QUEUE_TAG=OFFLINE_AI")
	high := g.targetWith(t, "11")
	out, err := g.testCommand(t, fmt.Sprint(low.PID), fmt.Sprint(high.PID)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok machine") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, p := range []*kfdtest.Program{low, high} { // both run after all that
		p.Ask("w")
		p.Ask("f")
	}
}

func (g gpreempt) testCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := g.Command(t, g.tests, args...)
	cmd.Env = append(cmd.Env, "ASAN_OPTIONS=verify_asan_link_order=0") // the virtual device's library is preloaded first
	return cmd
}

// ended suspends a program that is then killed: the caller keeps no agent of it.
func (g gpreempt) ended(t *testing.T) {
	p := g.targetWith(t, "7")
	out, err := g.testCommand(t, "ended", fmt.Sprint(p.PID)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok ended") {
		t.Errorf("%v\n%s", err, out)
	}
}

// orphan kills a caller whose child lives on with copies of all its descriptors.
func (g gpreempt) orphan(t *testing.T) {
	p := g.targetWith(t, "7")
	cmd := g.testCommand(t, "orphan", fmt.Sprint(p.PID))
	_, out := pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(<-out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(child, syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.Ask("w")
	p.Ask("f")
}

// schedule runs the scheduler that a user of the library writes. Tags, environment and
// the driver's priority tell online from offline; all programs have the same queue numbers.
func (g gpreempt) schedule(t *testing.T) {
	offline := []*kfdtest.Program{
		g.targetWith(t, "7", "AMD_QUEUE_TAG=OFFLINE_AI", "AMD_QUEUE_PRIORITY=15"), // the tag decides
		g.targetWith(t, "11", "AMD_QUEUE_PRIORITY=2"),                             // then the variable
		g.targetWith(t, "0"), // then the driver
	}
	online := g.targetWith(t, "0", "AMD_QUEUE_TAG=ONLINE_AI")
	cmd := g.Command(t, g.scheduler, "run")
	in, out := pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		ask(t, in, out, "online", "suspended 3 in ")
		var before []string
		for _, p := range offline {
			before = append(before, p.Ask("r"))
			p.Ask("w")
		}
		online.Ask("w")
		online.Ask("f") // the GPU is the online program's
		ask(t, in, out, "status", "status of 3")
		for i, p := range offline {
			if got := p.Ask("r"); got != before[i] {
				t.Errorf("round %d: offline %d ran while suspended: %s, was %s", round, i, got, before[i])
			}
		}
		ask(t, in, out, "done", "resumed 3 in ")
		for _, p := range offline {
			p.Ask("f") // nothing is lost
		}
	}
	ask(t, in, out, "online", "suspended 3 in ")
	if err := syscall.Kill(offline[2].PID, syscall.SIGKILL); err != nil { // a program may end at any time
		t.Fatal(err)
	}
	g.await(t, fmt.Sprint(offline[2].PID))
	ask(t, in, out, "status", "status of 3")
	ask(t, in, out, "done", "resumed 3 in ")
	offline = offline[:2]
	for _, p := range offline {
		p.Ask("w")
		p.Ask("f")
	}
	ask(t, in, out, "online", "suspended 2 in ")
	for _, p := range offline {
		p.Ask("w")
	}
	if err := cmd.Process.Kill(); err != nil { // its agents resume what it held
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, p := range offline {
		p.Ask("f")
	}
}

// realDump lists an MI308X's recorded descriptors with matching sysfs files: one ring of
// 4 KiB, which is certain, and four of 1 MiB with the same priority.
func (g gpreempt) realDump(t *testing.T) {
	root := t.TempDir()
	packed, err := os.Open("testdata/mi308x-mqds.txt.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	text, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	dump, err := io.ReadAll(text)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, content string) {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	put("sys/kernel/debug/kfd/mqds", string(dump))
	for id, size := range []string{"4096", "1048576", "1048576", "1048576", "1048576"} {
		folder := fmt.Sprintf("sys/class/kfd/kfd/proc/94314/queues/%d/", id)
		put(folder+"size", size)
		put(folder+"type", "0")
		put(folder+"gpuid", "63420")
	}
	list := func() string {
		cmd := g.Command(t, g.scheduler, "list")
		cmd.Env = append(cmd.Env, "XSCHED_VKFD_ROOT="+root)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	got := list()
	if strings.Count(got, "ring 0x7f61c15a6000, priority 7,") != 1 || strings.Count(got, "ring 0, priority 7,") != 4 {
		t.Error(got)
	}
	put("sys/class/kfd/kfd/proc/94314/queues/5/size", "1048576") // created after the dump
	put("sys/class/kfd/kfd/proc/94314/queues/5/type", "0")
	put("sys/class/kfd/kfd/proc/94314/queues/5/gpuid", "63420")
	if got = list(); strings.Count(got, "ring 0, priority unknown,") != 5 {
		t.Error(got)
	}
}

// pipes connects a program's input, and its output line by line.
func pipes(t *testing.T, cmd *exec.Cmd) (io.Writer, <-chan string) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 64)
	cmd.Stdout = &lineWriter{lines: lines}
	return in, lines
}

type lineWriter struct {
	part  string
	lines chan<- string
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.part += string(b)
	for {
		line, rest, complete := strings.Cut(w.part, "\n")
		if !complete {
			return len(b), nil
		}
		w.part = rest
		w.lines <- line
	}
}

// ask sends a command and reads lines up to one with this beginning.
func ask(t *testing.T, in io.Writer, out <-chan string, command, want string) {
	t.Helper()
	if _, err := fmt.Fprintln(in, command); err != nil {
		t.Fatal(err)
	}
	for limit := time.After(20 * time.Second); ; {
		select {
		case line := <-out:
			t.Log(line)
			if strings.HasPrefix(line, want) {
				return
			}
			if !strings.HasSuffix(line, " is suspended") {
				t.Fatalf("%s: %q, want %q", command, line, want)
			}
		case <-limit:
			t.Fatalf("%s: no answer", command)
		}
	}
}
