// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	vdevice "xsched/internal/virtual/device"
)

// The test binary is also the device process.
func TestMain(m *testing.M) {
	if socket := os.Getenv("VGPU_TEST_SERVE"); socket != "" {
		devices, _ := strconv.Atoi(os.Getenv("VGPU_TEST_DEVICES"))
		memory, _ := strconv.ParseUint(os.Getenv("VGPU_TEST_MEMORY"), 10, 64)
		err := Serve(context.Background(), Options{Socket: socket, Devices: devices, Memory: memory, Ready: func() { fmt.Println("ready") }})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// built is where the C parts are, built once a run.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// buildC compiles the targets of shim/virtual/SOURCES.txt and returns their folder.
func buildC(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds C code and runs processes")
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "vgpu"); built.err == nil {
			built.err = compile("gcc", built.dir)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

const (
	repository = "../../.."
	sourceDir  = repository + "/shim/virtual"
)

func compile(compiler, dir string) error {
	list, err := os.ReadFile(filepath.Join(sourceDir, "SOURCES.txt"))
	if err != nil {
		return fmt.Errorf("read list of sources: %w", err)
	}
	flags := strings.Fields("-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fvisibility=hidden -Ishim -Ishim/include")
	for line := range strings.Lines(string(list)) {
		target, rest, found := strings.Cut(strings.TrimSpace(line), ":")
		if !found || strings.HasPrefix(target, "#") {
			continue
		}
		args := append(append([]string(nil), flags...), "-o", filepath.Join(dir, target))
		for word := range strings.FieldsSeq(rest) {
			if !strings.HasPrefix(word, "-") && !strings.Contains(word, "/") {
				word = "shim/virtual/" + word
			}
			args = append(args, word)
		}
		cmd := exec.Command(compiler, args...)
		cmd.Dir = repository
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", target, err, out)
		}
	}
	return nil
}

// device is a device process.
type device struct {
	*vdevice.Client
	t      *testing.T
	socket string
	cmd    *exec.Cmd
	bin    string
}

// startDevice starts a device process that ends with the test.
func startDevice(t *testing.T, devices int) *device {
	t.Helper()
	d := &device{t: t, bin: buildC(t), socket: filepath.Join(t.TempDir(), "vgpu.sock")}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d.cmd = exec.Command(self)
	d.cmd.Env = append(os.Environ(), "VGPU_TEST_SERVE="+d.socket, "VGPU_TEST_DEVICES="+strconv.Itoa(devices))
	d.cmd.Stderr = os.Stderr
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("device said %q, %v", line, err)
	}
	if d.Client, err = vdevice.Dial(d.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// environment returns the environment of a program on the virtual GPU.
func (d *device) environment(more ...string) []string {
	return append(append(os.Environ(),
		"LD_PRELOAD="+filepath.Join(d.bin, "libvgpu.so"),
		"LD_LIBRARY_PATH="+d.bin,
		"XSCHED_VGPU_SOCKET="+d.socket), more...)
}

// statsWhen polls until ok accepts the stats.
func (d *device) statsWhen(what string, ok func(*vdevice.Stats) bool) *vdevice.Stats {
	d.t.Helper()
	var s *vdevice.Stats
	for range 500 {
		var err error
		if s, err = d.Stats(); err != nil {
			d.t.Fatal(err)
		}
		if ok(s) {
			return s
		}
		time.Sleep(10 * time.Millisecond)
	}
	d.t.Fatalf("waited 5 s for %s; stats %+v", what, s)
	return nil
}

// program is a tenant process.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    *os.File
	lines chan string
}

// tenant starts shim/virtual/tenant.c and waits until it is ready.
func (d *device) tenant(env []string, args ...string) *program {
	d.t.Helper()
	p := d.program(exec.Command(filepath.Join(d.bin, "tenant"), args...), env)
	p.expect("R")
	return p
}

// program starts a program on the device.
func (d *device) program(cmd *exec.Cmd, env []string) *program {
	d.t.Helper()
	p := &program{t: d.t, cmd: cmd, lines: make(chan string, 100000)}
	p.cmd.Env = d.environment(env...)
	p.cmd.Stderr = os.Stderr
	in, input, err := os.Pipe()
	if err != nil {
		d.t.Fatal(err)
	}
	p.cmd.Stdin, p.in = in, input
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	_ = in.Close()
	go func() {
		defer close(p.lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			p.lines <- scan.Text()
		}
	}()
	d.t.Cleanup(func() {
		_ = p.in.Close()
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	return p
}

func (p *program) pid() int { return p.cmd.Process.Pid }

func (p *program) say(command string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.t.Fatal(err)
	}
}

// expect skips to the next line that starts with this word and returns its fields.
func (p *program) expect(word string) []string {
	p.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case line, open := <-p.lines:
			if !open {
				p.t.Fatalf("tenant ended before %q", word)
			}
			if fields := strings.Fields(line); len(fields) > 0 && fields[0] == word {
				return fields
			}
		case <-limit:
			p.t.Fatalf("waited 20 s for %q", word)
		}
	}
}

// quit ends the tenant and returns its count of launches; checksums and exit code must agree
// with each other, and with good.
func (p *program) quit(good bool) uint64 {
	p.t.Helper()
	p.say("quit")
	s := p.expect("S")
	switch {
	case len(s) != 4 || s[2] == s[3] && !good:
		p.t.Errorf("checksums %v, want equal: %v", s, good)
	case s[2] != s[3] && good:
		p.t.Errorf("wrong result: checksums %v", s)
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if good && err != nil || !good && !errors.As(err, &exit) {
		p.t.Errorf("exit %v", err)
	}
	n, _ := strconv.ParseUint(s[1], 10, 64)
	return n
}
