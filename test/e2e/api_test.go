// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/policy"
	"xsched/internal/vgpu"
)

// compile builds a program of testdata into a folder of its own.
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

// TestUpstreamProgram: a program written for upstream's interface compiles, and runs with and
// without a daemon, switched off, and with the library opened by hand.
func TestUpstreamProgram(t *testing.T) {
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
	run(fmt.Sprintf(line, 1), plain, c, "1") // linked is as good as preloaded
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

// TestStreamsThatWaitForEachOther: beside a competitor, under every policy and with streams as queues
// or not, such a program goes on.
func TestStreamsThatWaitForEachOther(t *testing.T) {
	streams := compile(t, "gcc", "streams.c", "-std=c11")
	for _, granularity := range []string{"process", "queue"} {
		t.Run(granularity, func(t *testing.T) {
			w := newWorld(t)
			high := w.tenant(options{priority: 10}, 300)
			high.send("rate 500")
			p := w.run(options{level: "1", env: []string{"XSCHED_GRANULARITY=" + granularity}}, streams)
			p.expect("dot", 20*time.Second)
			want := map[string]int{"process": 1, "queue": 5}[granularity]
			eventually(t, 10*time.Second, "the queues are known", func() bool {
				known := w.process(p.pid())
				return known != nil && len(known.Queues) == want
			})
			for _, name := range policy.Names() {
				w.must("policy", name)
				for range 3 {
					p.expect("dot", 20*time.Second)
				}
			}
			_ = p.in.Close()
			p.expect("rounds ", 20*time.Second)
			if err := p.wait(10 * time.Second); err != nil {
				t.Errorf("streams: %v; stderr: %s", err, p.stderr())
			}
			high.finish()
		})
	}
}

// TestPrivateScheduler: it is there for one program, ends with it however that ends, and its own
// end leaves the program running.
func TestPrivateScheduler(t *testing.T) {
	base, err := os.MkdirTemp("", "xs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	w := &world{t: t, dir: base}
	start := func() (*program, string) {
		t.Helper()
		cmd := exec.Command(xschedPath(t), "run", "--virtual", "--local", "--policy", "RR", "--", product(t, "virtual/tenant"), "--name", "t", "--kernel-us", "500")
		cmd.Env = append(w.env(), "XDG_RUNTIME_DIR="+base)
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
		p.expect("R", 15*time.Second)
		found, err := filepath.Glob(filepath.Join(base, "xsched-local-*"))
		if err != nil || len(found) != 1 {
			t.Fatalf("private folders %v, %v", found, err)
		}
		return p, found[0]
	}
	gone := func(dir string) {
		t.Helper()
		eventually(t, 10*time.Second, "the private scheduler ends", func() bool {
			_, err := os.Stat(dir)
			return os.IsNotExist(err)
		})
	}
	t.Run("program ends", func(t *testing.T) {
		p, dir := start()
		p.send("loop")
		if out, err := w.xsched("list", "--dir", dir); err != nil || !strings.Contains(out, "tenant") {
			t.Errorf("list: %v\n%s", err, out)
		}
		if out, err := w.xsched("policy", "--dir", dir); err != nil || !strings.Contains(out, "RR") {
			t.Errorf("policy: %v\n%s", err, out)
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
		eventually(t, 10*time.Second, "the program goes on", func() bool { return p.iterationsAfter(at+int64(500*time.Millisecond)) > 10 })
		p.finish()
		// The device outlives its daemon, as a real one would.
		if gpu, err := vgpu.Dial(filepath.Join(dir, "vgpu.sock")); err == nil {
			_ = gpu.Quit()
			_ = gpu.Close()
		}
	})
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
