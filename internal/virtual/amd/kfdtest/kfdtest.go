// SPDX-License-Identifier: Apache-2.0

// Package kfdtest runs the virtual AMD GPU and programs on it for tests.
package kfdtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	vamd "xsched/internal/virtual/amd"
)

// Device is a virtual device served by this process.
type Device struct {
	Kernel *vamd.Kernel
	Socket string
	Root   string // contains sys/
	Env    []string
}

// repository returns the root of the sources.
func repository() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../../..")
}

var building sync.Mutex

// Build compiles a C program or library once a process into a folder of the test binary's own.
func Build(t testing.TB, name, flags string, sources ...string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	target := filepath.Join(t.TempDir(), name)
	args := strings.Fields("-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -Ishim -Ishim/include " + flags)
	cmd := exec.Command("gcc", append(append(args, "-o", target), sources...)...)
	cmd.Dir = repository()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return target
}

// Serve starts a virtual device that ends with the test.
func Serve(t testing.TB, config vamd.Config) *Device {
	t.Helper()
	return ServeIn(t, config, t.TempDir())
}

// ServeIn starts a virtual device in a daemon's runtime folder.
func ServeIn(t testing.TB, config vamd.Config, dir string) *Device {
	t.Helper()
	if testing.Short() {
		t.Skip("builds C code and runs processes")
	}
	library := Build(t, "libvkfd.so", "-fPIC -shared -fvisibility=hidden", "shim/virtual/libvkfd.c", "-ldl")
	d := &Device{Socket: filepath.Join(dir, "kfd.sock"), Root: filepath.Join(dir, "kfd")}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- vamd.Serve(ctx, vamd.Options{
			Socket: d.Socket, Root: d.Root, Config: config,
			Ready: func() { close(ready) }, Kernel: func(k *vamd.Kernel) { d.Kernel = k },
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	d.Env = append(os.Environ(), "XSCHED_VKFD_SOCKET="+d.Socket, "XSCHED_VKFD_ROOT="+d.Root, "LD_PRELOAD="+library)
	return d
}

// Program is a running program that answers each line with a line.
type Program struct {
	PID   int
	t     testing.TB
	in    io.WriteCloser
	lines chan string
}

// Command prepares a program on the virtual device that ends with the test.
func (d *Device) Command(t testing.TB, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = d.Env
	return cmd
}

// Target starts the test program with a compute and a copy queue.
func (d *Device) Target(t testing.TB) *Program {
	t.Helper()
	p := d.Start(t)
	if line := p.Line(); !strings.HasPrefix(line, "ready ") {
		t.Fatal(line)
	}
	return p
}

// Start starts the test program and does not wait for it.
func (d *Device) Start(t testing.TB, args ...string) *Program {
	t.Helper()
	return d.Run(t, d.Command(t, Build(t, "kfdtarget", "", "shim/virtual/kfdtarget.c"), args...))
}

// Run starts a prepared program.
func (d *Device) Run(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Program{PID: cmd.Process.Pid, t: t, in: in, lines: make(chan string, 64)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		for range p.lines {
		}
		_ = cmd.Wait()
	})
	return p
}

// Line is the next line the program writes.
func (p *Program) Line() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the program has ended")
		}
		if strings.HasPrefix(line, "FAIL") {
			p.t.Fatal(line)
		}
		return line
	case <-time.After(20 * time.Second):
		p.t.Fatal("the program does not answer")
	}
	return ""
}

// Send writes a command.
func (p *Program) Send(command string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.t.Fatal(err)
	}
}

// Ask writes a command and reads the answer.
func (p *Program) Ask(command string) string {
	p.t.Helper()
	p.Send(command)
	return p.Line()
}
