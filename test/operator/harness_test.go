// SPDX-License-Identifier: Apache-2.0

// Package operator tests what an operator uses, with the real counterpart: a browser, a terminal, a
// package manager, a monitoring system. Its tests are TestLong...; run them with `make test-operator`.
package operator

import (
	"bufio"
	"context"
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

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// root of the repository, from this package's folder.
const root = "../.."

// patience is how long a test waits for a state that must come. It judges no speed.
const patience = time.Minute

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// product returns the path of something that `make all` built.
func product(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing: run `make all` (%v)", name, err)
	}
	return path
}

// start starts a command and kills it when the test ends.
func start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.WaitDelay = 5 * time.Second // a grandchild may keep the pipes open
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// daemon is a private `xsched serve --virtual` with its own virtual GPU.
type daemon struct {
	t      testing.TB
	dir    string
	http   string // host:port of the next start; port 0 first
	cmd    *exec.Cmd
	client *client.Client
}

// newDaemon starts a daemon that serves HTTP at a free port of the loopback.
func newDaemon(t testing.TB, args ...string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "xs")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // other users' programs connect, too
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: dir, http: "127.0.0.1:0", client: client.New(filepath.Join(dir, "control.sock"))}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Cleanup(func() {
		if d.cmd != nil {
			d.stop()
		}
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("log of the daemon:\n%s", text[max(0, len(text)-4000):])
		}
	})
	d.start(args...)
	return d
}

// start starts the daemon, again at the same address.
func (d *daemon) start(args ...string) {
	d.t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	d.cmd = exec.Command(product(d.t, "bin/xsched"), append([]string{"serve", "--virtual", "--devices", "1", "--http", d.http}, args...)...)
	d.cmd.Env, d.cmd.Stderr = d.env(), log
	start(d.t, d.cmd)
	eventually(d.t, "the daemon answers", func() bool {
		v, err := d.client.Version(context.Background())
		return err == nil && v.PID == d.cmd.Process.Pid
	})
	if strings.HasSuffix(d.http, ":0") {
		eventually(d.t, "the log names the HTTP address", func() bool {
			text, _ := os.ReadFile(log.Name())
			_, rest, found := strings.Cut(string(text), "http=")
			if found {
				d.http, _, _ = strings.Cut(rest, "\n")
				d.http, _, _ = strings.Cut(d.http, " ")
			}
			return found
		})
	}
}

// stop ends the daemon gracefully, which also ends its virtual GPU.
func (d *daemon) stop() {
	d.t.Helper()
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	_ = d.cmd.Wait()
	d.client.Close()
}

// kill ends the daemon with SIGKILL. The virtual GPU and the tenants continue.
func (d *daemon) kill() {
	d.t.Helper()
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
	d.client.Close()
}

func (d *daemon) env() []string { return append(os.Environ(), "XSCHED_DIR="+d.dir) }

// tenant is a running program on the virtual GPU.
type tenant struct {
	cmd *exec.Cmd
	in  io.Writer
}

func (p *tenant) pid() int { return p.cmd.Process.Pid }

// tenant starts a load generator and waits until the daemon knows a queue of it. argv0 is its command.
func (d *daemon) tenant(argv0 string, kernelUS int, runArgs ...string) *tenant {
	d.t.Helper()
	args := append(append([]string{"run", "--virtual"}, runArgs...), "--", argv0, "--name", "t", "--kernel-us", strconv.Itoa(kernelUS))
	p := &tenant{cmd: exec.Command(product(d.t, "bin/xsched"), args...)}
	p.cmd.Env, p.cmd.Stderr = d.env(), os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	p.in = in
	start(d.t, p.cmd)
	ready := make(chan struct{})
	go func() {
		scan := bufio.NewScanner(out)
		for first := true; scan.Scan(); first = false {
			if first {
				close(ready)
			}
		}
	}()
	select {
	case <-ready:
	case <-time.After(patience):
		d.t.Fatalf("%s is not ready", argv0)
	}
	eventually(d.t, fmt.Sprintf("the daemon manages %d", p.pid()), func() bool {
		found := d.process(p.pid())
		return found != nil && len(found.Queues) > 0
	})
	return p
}

// tell sends a command: "loop", "rate 100" or "pause".
func (p *tenant) tell(t testing.TB, line string) {
	t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// process returns the daemon's view of a process, or nil.
func (d *daemon) process(pid int) *control.Process {
	list, err := d.client.List(context.Background())
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
