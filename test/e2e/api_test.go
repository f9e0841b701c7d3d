// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/policy"
	vdevice "xsched/internal/virtual/device"
)

// compile builds a program of testdata into a temporary folder.
func compile(t *testing.T, compiler, source string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("no %s", compiler)
	}
	out := filepath.Join(t.TempDir(), "program")
	all := append([]string{"-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-I" + filepath.Join(root, "shim", "include"), "-o", out}, args...)
	all = append(all, filepath.Join("testdata", source), "-x", "none", product(t, "virtual/libcuda.so.1"), "-lpthread", "-ldl")
	if !strings.Contains(strings.Join(args, " "), "USE_DLOPEN") && source == "upstream.c" {
		all = append(all, "-L"+filepath.Dir(product(t, "libxsched.so")), "-lxsched")
	}
	if text, err := exec.Command(compiler, all...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", compiler, source, err, text)
	}
	return out
}

// TestUpstreamProgram: a program for upstream's C interface compiles unchanged. It runs with a daemon,
// without one, with the shim disabled, and with the library opened by dlopen.
func TestUpstreamProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plain := []string{
		"LD_PRELOAD=" + product(t, "virtual/libvgpu.so"), "XSCHED_VGPU_SOCKET=" + w.path("vgpu.sock"),
		"LD_LIBRARY_PATH=" + filepath.Dir(product(t, "libxsched.so")) + ":" + filepath.Dir(product(t, "virtual/libcuda.so.1")),
	}
	nowhere := append(plain, "XSCHED_SOCKET="+w.path("nowhere"))
	c := compile(t, "gcc", "upstream.c", "-std=c11", "-pedantic")
	opened := compile(t, "gcc", "upstream.c", "-DUSE_DLOPEN")
	run := func(want string, env []string, argv ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = append(w.env(), env...)
		var complaint bytes.Buffer
		cmd.Stderr = &complaint
		out, err := cmd.Output()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%v: %v\n got %s\nwant %s\n%s", argv, err, out, want, complaint.String())
		}
	}
	const line = "available %d, same 1, busy 1, idle 1, commands 20, level 3 5, drop 5"
	run(fmt.Sprintf(line, 1), nil, xschedPath(t), "run", "--virtual", "--", c, "1")
	run(fmt.Sprintf(line, 1), plain, c, "1") // linked instead of preloaded
	run(fmt.Sprintf(line, 0), nowhere, c, "0")
	run(fmt.Sprintf(line, 1), plain, opened, "1", product(t, "libxsched.so"))
	run(fmt.Sprintf(line, 0), nowhere, opened, "0", product(t, "libxsched.so"))
	run("available 0, same 1, busy 0, idle 1, commands 20, level 3 5, drop 5", append(nowhere, "XSCHED_DISABLE=1"), c, "0")
	t.Run("C++", func(t *testing.T) {
		program := compile(t, "g++", "upstream.c", "-x", "c++")
		if err := exec.Command(program).Run(); err == nil {
			t.Error("it ran without a GPU")
		}
	})
}

// TestStreamsThatWaitForEachOther: a program whose streams wait for each other does not deadlock beside a
// competitor, under any policy, whether its queues are streams or the whole process.
func TestStreamsThatWaitForEachOther(t *testing.T) {
	t.Parallel()
	streams := compile(t, "gcc", "streams.c", "-std=c11")
	for _, c := range []struct{ granularity, level string }{{"process", "3"}, {"process", "1"}, {"queue", "1"}} {
		t.Run(c.granularity+" Lv"+c.level, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			high := w.tenant(options{priority: 10}, 300)
			high.send("rate 500")
			p := w.run(options{level: c.level, env: []string{"XSCHED_GRANULARITY=" + c.granularity}}, streams)
			p.expect("dot", soon)
			want := map[string]int{"process": 1, "queue": 5}[c.granularity]
			eventually(t, soon, "the queues are known", func() bool {
				known := w.process(p.pid())
				return known != nil && len(known.Queues) == want && strconv.Itoa(known.Queues[0].Level) == c.level
			})
			for _, name := range policy.Names() {
				w.must("policy", name)
				for range 3 {
					p.expect("dot", soon)
				}
			}
			_ = p.in.Close()
			p.expect("rounds ", soon)
			if err := p.wait(10 * time.Second); err != nil {
				t.Errorf("streams: %v; stderr: %s", err, p.stderr())
			}
			high.finish()
		})
	}
}

// TestPrivateScheduler: a private scheduler serves one program and ends with it, even if the program is killed.
// If the scheduler is killed, the program continues.
func TestPrivateScheduler(t *testing.T) {
	t.Parallel()
	base, err := os.MkdirTemp("", "xs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	w := &world{t: t, dir: base}
	given, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = given.Close(), other.Close() }()
	start := func() (*program, string) {
		t.Helper()
		cmd := exec.Command(xschedPath(t), "run", "--virtual", "--local", "--policy", "RR", "--", product(t, "virtual/tenant"), "--name", "t", "--kernel-us", "500")
		cmd.Env = append(w.env(), "XDG_RUNTIME_DIR="+base)
		cmd.ExtraFiles = []*os.File{nil, nil, given} // beyond descriptors that the starter may use
		p := &program{t: t, cmd: cmd, lines: make(chan string, 4096)}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr, p.in = lockedWriter{p}, in
		startOwn(t, cmd)
		go p.read(out)
		p.expect("R", soon)
		found, err := filepath.Glob(filepath.Join(base, "xsched-local-*"))
		if err != nil || len(found) != 1 {
			t.Fatalf("private folders %v, %v", found, err)
		}
		return p, found[0]
	}
	gone := func(dir string) {
		t.Helper()
		eventually(t, soon, "the private scheduler ends", func() bool {
			_, err := os.Stat(dir)
			return os.IsNotExist(err)
		})
	}
	t.Run("program ends", func(t *testing.T) {
		p, dir := start()
		p.send("loop")
		eventually(t, soon, "the program joins its private scheduler", func() bool {
			out, err := w.xsched("list", "--dir", dir)
			return err == nil && strings.Contains(out, "tenant")
		})
		if out, err := w.xsched("policy", "--dir", dir); err != nil || !strings.Contains(out, "RR") {
			t.Errorf("policy: %v\n%s", err, out)
		}
		// The daemon must not inherit the program's descriptors: it would keep a pipe open.
		if !keeps(t, p.pid(), given) {
			t.Error("the program has not got its file")
		}
		if keeps(t, serverOf(t, dir), given) {
			t.Error("the private scheduler has a file of the program's")
		}
		p.finish()
		gone(dir)
	})
	t.Run("program is killed", func(t *testing.T) {
		p, dir := start()
		p.send("loop")
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		gone(dir)
	})
	t.Run("scheduler is killed", func(t *testing.T) {
		p, dir := start()
		p.send("loop")
		pid := serverOf(t, dir)
		at := nowNS()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, soon, "the program goes on", func() bool { return p.iterationsAfter(at+int64(500*time.Millisecond)) > 10 })
		p.finish()
		// The device outlives its daemon, as real hardware does.
		if gpu, err := vdevice.Dial(filepath.Join(dir, "vgpu.sock")); err == nil {
			_ = gpu.Quit()
			_ = gpu.Close()
		}
	})
}

// keeps reports whether a process has the file open.
func keeps(t *testing.T, pid int, file *os.File) bool {
	t.Helper()
	ours, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(links) == 0 {
		t.Fatalf("files of %d: %v", pid, err)
	}
	for _, link := range links {
		if theirs, err := os.Readlink(link); err == nil && theirs == ours {
			return true
		}
	}
	return false
}

// serverOf finds the private daemon of a folder.
func serverOf(t *testing.T, dir string) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte("\x00private\x00")) || !bytes.Contains(text, []byte(dir)) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil {
			return pid
		}
	}
	t.Fatal("no private scheduler is there")
	return 0
}

// TestSchedulerByEnvironment: XSCHED_SCHEDULER selects the scheduler; XSCHED_SCHED is an accepted alias.
func TestSchedulerByEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"XSCHED_SCHEDULER", "XSCHED_SCHED"} {
		for _, value := range []string{"GLB", "LCL", "APP"} {
			t.Run(name+"="+value, func(t *testing.T) {
				p := w.tenant(options{env: []string{name + "=" + value, "XDG_RUNTIME_DIR=" + w.dir}}, 500)
				p.send("loop")
				eventually(t, soon, "it works", func() bool { return p.iterationsAfter(0) > 10 })
				if value == "GLB" {
					w.waitLevel(p.pid(), 3)
				} else if w.process(p.pid()) != nil {
					t.Errorf("the daemon of all has it")
				}
				private, err := filepath.Glob(filepath.Join(w.dir, "xsched-local-*"))
				if err != nil || (len(private) == 1) != (value == "LCL") {
					t.Errorf("private folders %v, %v", private, err)
				}
				if value == "LCL" {
					if out, err := w.xsched("list", "--dir", private[0]); err != nil || !strings.Contains(out, strconv.Itoa(p.pid())) {
						t.Errorf("its own daemon: %v\n%s", err, out)
					}
				}
				p.finish()
				eventually(t, soon, "a private scheduler ends with its program", func() bool {
					left, err := filepath.Glob(filepath.Join(w.dir, "xsched-local-*"))
					return err == nil && len(left) == 0
				})
			})
		}
	}
}
