// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the built binary and the shim with real processes on the virtual GPU: normal use, and
// faults such as killed, stopped and malicious processes. Run it with `make test-e2e`.
package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
	vdevice "xsched/internal/virtual/device"
	"xsched/internal/window/windowtest"
)

// root of the repository, from this package's folder.
const root = "../.."

func xschedPath(t testing.TB) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, "bin", "xsched"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no binary to test: run `make build` (%v)", err)
	}
	return path
}

func product(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, "build", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("build product is missing: run `make build` (%v)", err)
	}
	return path
}

// scenarios and spread build programs in testdata against the virtual driver, once.
var (
	scenarios = sync.OnceValues(func() (string, error) { return buildProgram("scenarios") })
	spread    = sync.OnceValues(func() (string, error) { return buildProgram("gpus") })
	crowded   = sync.OnceValues(func() (string, error) { return buildProgram("crowded") })
	movable   = sync.OnceValues(func() (string, error) { return buildProgram("movable") })
)

func buildProgram(name string) (string, error) {
	dir, err := os.MkdirTemp("", "xsched-e2e-")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, name)
	driver, err := filepath.Abs(filepath.Join(root, "build", "virtual", "libcuda.so.1"))
	if err != nil {
		return "", err
	}
	cmd := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror",
		"-o", out, "testdata/"+name+".c", driver, "-lpthread")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, text)
	}
	return out, nil
}

func TestMain(m *testing.M) {
	windowtest.Main()
	machine() // measures from now on
	code := m.Run()
	for _, built := range []func() (string, error){scenarios, spread, crowded, movable} {
		if path, err := built(); err == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
	}
	if installedAt != "" {
		_ = os.RemoveAll(installedAt)
	}
	os.Exit(code)
}

// world is one private daemon with its own virtual GPU.
type world struct {
	t      testing.TB
	dir    string
	device *exec.Cmd
	serve  *exec.Cmd
	log    *os.File
	stderr *os.File // of the next daemon; nil: log
	client *client.Client
	gpu    *vdevice.Client
}

// newWorld starts a device process and a daemon in a private folder, until the test ends.
func newWorld(t testing.TB, serveArgs ...string) *world {
	t.Helper()
	return newWorldOf(t, 2, serveArgs...)
}

// newWorldOf is newWorld with so many GPUs.
func newWorldOf(t testing.TB, gpus int, serveArgs ...string) *world {
	t.Helper()
	return newWorldWith(t, []string{"--devices", strconv.Itoa(gpus)}, serveArgs...)
}

// newWorldWith is newWorld with options for the virtual GPU.
func newWorldWith(t testing.TB, gpuArgs []string, serveArgs ...string) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "xs")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w.openLog()
	w.client = client.New(filepath.Join(dir, "control.sock"))

	w.device = exec.Command(xschedPath(t), append([]string{"vgpu", "--socket", w.path("vgpu.sock")}, gpuArgs...)...)
	w.device.Stderr = w.log
	startOwn(t, w.device)
	eventually(t, soon, "the device process answers", func() bool {
		w.gpu, err = vdevice.Dial(w.path("vgpu.sock"))
		return err == nil
	})
	t.Cleanup(func() { _ = w.gpu.Close() })
	w.startDaemon(serveArgs...)
	return w
}

// openLog makes the file for what daemon and device log. A test that fails shows its end.
func (w *world) openLog() {
	w.t.Helper()
	var err error
	if w.log, err = os.Create(w.path("serve.log")); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = w.log.Close()
		if w.t.Failed() {
			text, _ := os.ReadFile(w.log.Name())
			w.t.Logf("log of daemon and device:\n%s", text[max(0, len(text)-6000):])
		}
	})
}

// listens reports that a process listens at the socket. One that is bound only refuses connections.
func (w *world) listens(socket string) bool {
	const listening = "00010000" // __SO_ACCEPTCON
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) { // Num: RefCount Protocol Flags Type St Inode Path
		if f := strings.Fields(line); len(f) == 8 && f[3] == listening && f[7] == w.path(socket) {
			return true
		}
	}
	return false
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// env is the environment of this world's processes.
func (w *world) env(extra ...string) []string {
	return append(append(os.Environ(), "XSCHED_DIR="+w.dir), extra...)
}

// startOwn starts cmd and kills it when the test ends.
func startOwn(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// startDaemon starts `xsched serve` and waits until it answers.
func (w *world) startDaemon(args ...string) {
	w.t.Helper()
	w.serve = exec.Command(xschedPath(w.t), append([]string{"serve", "--virtual"}, args...)...)
	w.serve.Env = w.env()
	if w.serve.Stderr = w.log; w.stderr != nil {
		w.serve.Stderr = w.stderr
	}
	startOwn(w.t, w.serve)
	eventually(w.t, soon, "the daemon answers", func() bool {
		v, err := w.client.Version(context.Background())
		return err == nil && v.PID == w.serve.Process.Pid
	})
}

// killDaemon kills the daemon with SIGKILL and returns the time.
func (w *world) killDaemon() int64 {
	w.t.Helper()
	at := nowNS()
	if err := w.serve.Process.Kill(); err != nil {
		w.t.Fatal(err)
	}
	_ = w.serve.Wait()
	w.client.Close()
	return at
}

// xsched runs one command against this world's daemon.
func (w *world) xsched(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, xschedPath(w.t), args...)
	cmd.Env = w.env()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (w *world) must(args ...string) string {
	w.t.Helper()
	out, err := w.xsched(args...)
	if err != nil {
		w.t.Fatalf("xsched %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// process returns the daemon's view of a process, or nil.
func (w *world) process(pid int) *control.Process {
	list, err := w.client.List(context.Background())
	if err != nil {
		return nil
	}
	for i := range list.Processes {
		if list.Processes[i].PID == pid {
			return &list.Processes[i]
		}
	}
	return nil
}

// waitLevel waits until the daemon can control the process at this level.
func (w *world) waitLevel(pid, level int) {
	w.t.Helper()
	eventually(w.t, soon, fmt.Sprintf("process %d at level %d", pid, level), func() bool {
		p := w.process(pid)
		return p != nil && len(p.Queues) > 0 && p.Queues[0].Level >= level
	})
}

// program is a running child that tests control by lines of text.
type program struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string

	mu   sync.Mutex
	ends []int64 // ends of finished iterations, CLOCK_MONOTONIC ns
	took []int64 // their durations
	err  strings.Builder
}

type options struct {
	priority int
	level    string
	plain    bool     // on the virtual GPU, without the shim
	args     []string // more flags of run
	env      []string
	uid      uint32
}

// run starts argv on this world's virtual GPU.
func (w *world) run(o options, argv ...string) *program {
	w.t.Helper()
	env := w.env(o.env...)
	var cmd *exec.Cmd
	if o.plain {
		cmd = exec.Command(argv[0], argv[1:]...)
		env = append(env, "LD_PRELOAD="+product(w.t, "virtual/libvgpu.so"),
			"LD_LIBRARY_PATH="+filepath.Dir(product(w.t, "virtual/libcuda.so.1")),
			"XSCHED_VGPU_SOCKET="+w.path("vgpu.sock"))
	} else {
		args := []string{"run", "--virtual", "--priority", strconv.Itoa(o.priority)}
		if o.level != "" {
			args = append(args, "--level", o.level)
		}
		args = append(args, o.args...)
		cmd = exec.Command(xschedPath(w.t), append(append(args, "--"), argv...)...)
	}
	cmd.Env = env
	if o.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: o.uid, Gid: o.uid}}
	}
	return w.drive(cmd)
}

// exec starts a program that does not use the GPU.
func (w *world) exec(argv ...string) *program {
	w.t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = w.env()
	return w.drive(cmd)
}

// drive starts a program with pipes to its standard input and output.
func (w *world) drive(cmd *exec.Cmd) *program {
	w.t.Helper()
	p := &program{t: w.t, cmd: cmd, lines: make(chan string, 4096)}
	cmd.WaitDelay = 5 * time.Second // a grandchild may keep the pipes open
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd.Stderr = lockedWriter{p}
	p.in = in
	startOwn(w.t, cmd)
	go p.read(out)
	return p
}

type lockedWriter struct{ p *program }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.err.Write(b)
}

func (p *program) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.String()
}

func (p *program) read(out io.Reader) {
	defer close(p.lines)
	scan := bufio.NewScanner(out)
	for scan.Scan() {
		line := scan.Text()
		if rest, ok := strings.CutPrefix(line, "I "); ok {
			if begin, end, ok := strings.Cut(rest, " "); ok {
				began, _ := strconv.ParseInt(begin, 10, 64)
				if n, err := strconv.ParseInt(end, 10, 64); err == nil {
					p.mu.Lock()
					p.ends, p.took = append(p.ends, n), append(p.took, n-began)
					p.mu.Unlock()
				}
			}
			continue
		}
		select {
		case p.lines <- line:
		default:
		}
	}
}

func (p *program) pid() int { return p.cmd.Process.Pid }

func (p *program) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatalf("tell %s: %v; stderr: %s", p.cmd.Path, err, p.stderr())
	}
}

// expect returns the next line that starts with prefix.
func (p *program) expect(prefix string, limit time.Duration) string {
	p.t.Helper()
	timeout := time.After(limit)
	last := ""
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("program ended before %q; its last line: %q; stderr: %s", prefix, last, p.stderr())
			}
			if strings.HasPrefix(line, prefix) {
				return line
			}
			last = line
		case <-timeout:
			p.t.Fatalf("no line %q within %v; the last line: %q; stderr: %s", prefix, limit, last, p.stderr())
		}
	}
}

// iterationsAfter counts iterations that ended after this time.
func (p *program) iterationsAfter(at int64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, end := range p.ends {
		if end > at {
			n++
		}
	}
	return n
}

// iterates waits until the program has finished so many more iterations.
func (p *program) iterates(n int) {
	p.t.Helper()
	at := nowNS()
	eventually(p.t, time.Minute, fmt.Sprintf("%d iterations", n), func() bool { return p.iterationsAfter(at) >= n })
}

// wait closes stdin and returns the program's exit error.
func (p *program) wait(limit time.Duration) error {
	_ = p.in.Close()
	done := make(chan error, 1)
	go func() {
		for range p.lines { // Wait requires EOF
		}
		done <- p.cmd.Wait()
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return errors.New("did not end")
	}
}

// tenant starts the load generator and waits until it is ready.
func (w *world) tenant(o options, kernelUS int, args ...string) *program {
	w.t.Helper()
	argv := append([]string{product(w.t, "virtual/tenant"), "--name", "t", "--kernel-us", strconv.Itoa(kernelUS)}, args...)
	p := w.run(o, argv...)
	p.expect("R", soon)
	return p
}

// finish ends a tenant and checks its checksum.
func (p *program) finish() {
	p.t.Helper()
	p.send("pause")
	p.expect("P", soon)
	p.send("report")
	line := strings.Fields(p.expect("S ", soon))
	if len(line) != 4 || line[2] != line[3] {
		p.t.Errorf("wrong result: checksum %v", line)
	}
	if err := p.wait(soon); err != nil {
		p.t.Errorf("tenant: %v; stderr: %s", err, p.stderr())
	}
}

// execAs runs a command as the user nobody.
func execAs(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}
