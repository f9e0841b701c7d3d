// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Tenant is one running load generator. Lines on its stdin drive it, and it
// reports every iteration on its stdout.
type Tenant struct {
	Name string
	cmd  *exec.Cmd // nil: another process's child, with this pid
	ID   int
	In   io.WriteCloser
	errs Tail

	Events chan string // lines that are not samples: R, P, S ...
	Done   chan struct{}

	mu      sync.Mutex
	samples []Sample
	final   *finalLine
	ended   error

	// Of a tenant that schedules itself: the library's count, and when it was suspended.
	Submitted uint64
	Holds     []Window
}

// finalLine is a tenant's own account: S launches checksum expected.
type finalLine struct {
	Launches uint64
	OK       bool
}

// StartTenant runs argv; the tenant ends by itself when its stdin is closed.
func StartTenant(name string, argv, env []string) (*Tenant, error) {
	t := &Tenant{Name: name, Events: make(chan string, 16), Done: make(chan struct{})}
	t.cmd = exec.Command(argv[0], argv[1:]...)
	t.cmd.Env = env
	t.cmd.Stderr = &t.errs
	// A tenant whose channels are disabled reacts to SIGKILL only, and must not outlive the
	// benchmark.
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	in, err := t.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start tenant %s: %w", name, err)
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start tenant %s: %w", name, err)
	}
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start tenant %s: %w", name, err)
	}
	t.In = in
	go t.Read(out)
	return t, nil
}

// PID is the tenant's: `xsched run` replaces itself by the command.
func (t *Tenant) PID() int {
	if t.cmd == nil {
		return t.ID
	}
	return t.cmd.Process.Pid
}

func (t *Tenant) Read(out io.Reader) {
	defer close(t.Done)
	defer close(t.Events)
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		line := sc.Bytes()
		if s, ok := parseSample(line); ok {
			t.mu.Lock()
			t.samples = append(t.samples, s)
			t.mu.Unlock()
			continue
		}
		if f, ok := parseFinal(string(line)); ok {
			t.mu.Lock()
			t.final = &f
			t.mu.Unlock()
		}
		if t.parseOwn(string(line)) {
			continue
		}
		select {
		case t.Events <- string(line):
		default: // no reader: a tenant must never block on the benchmark
		}
	}
	if t.cmd == nil {
		return
	}
	err := t.cmd.Wait()
	t.mu.Lock()
	t.ended = err
	t.mu.Unlock()
}

// parseOwn reads "Q submitted" and "H from to".
func (t *Tenant) parseOwn(line string) bool {
	var n uint64
	var w Window
	_, count := fmt.Sscanf(line, "Q %d", &n)
	_, hold := fmt.Sscanf(line, "H %d %d", &w.From, &w.To)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case count == nil:
		t.Submitted = n
	case hold == nil:
		t.Holds = append(t.Holds, w)
	default:
		return false
	}
	return true
}

// parseSample reads "I start end".
func parseSample(line []byte) (Sample, bool) {
	f := bytes.Fields(line)
	if len(f) != 3 || string(f[0]) != "I" {
		return Sample{}, false
	}
	start, err1 := strconv.ParseInt(string(f[1]), 10, 64)
	end, err2 := strconv.ParseInt(string(f[2]), 10, 64)
	return Sample{start, end}, err1 == nil && err2 == nil && end >= start
}

// parseFinal reads "S launches checksum expected".
func parseFinal(line string) (finalLine, bool) {
	f := strings.Fields(line)
	if len(f) != 4 || f[0] != "S" {
		return finalLine{}, false
	}
	n, err := strconv.ParseUint(f[1], 10, 64)
	return finalLine{Launches: n, OK: f[2] == f[3]}, err == nil
}

// Tell sends a command.
func (t *Tenant) Tell(command string) error {
	if _, err := io.WriteString(t.In, command+"\n"); err != nil {
		return t.gone(err)
	}
	return nil
}

// Await waits for a line that starts with this word.
func (t *Tenant) Await(ctx context.Context, word string, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case line, open := <-t.Events:
			if !open {
				return t.gone(io.EOF)
			}
			if line == word || strings.HasPrefix(line, word+" ") {
				return nil
			}
		case <-timer.C:
			return fmt.Errorf("tenant %s (pid %d) did not answer %q within %v%s", t.Name, t.PID(), word, limit, t.errs.Suffix())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Pause stops the tenant's load and waits until it has nothing in flight.
func (t *Tenant) Pause(ctx context.Context) error {
	if err := t.Tell("pause"); err != nil {
		return err
	}
	return t.Await(ctx, "P", 10*time.Second)
}

// Quit lets the tenant finish and report, then reaps it.
func (t *Tenant) Quit(limit time.Duration) error {
	// An error means that it has ended already; its exit status says more.
	_ = t.Tell("quit")
	_ = t.In.Close()
	select {
	case <-t.Done:
	case <-time.After(limit):
		t.Kill()
		return fmt.Errorf("tenant %s (pid %d) did not end within %v", t.Name, t.PID(), limit)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != nil {
		return fmt.Errorf("ended with %w%s", t.ended, t.errs.Suffix())
	}
	if t.final == nil {
		return errors.New("ended without a report")
	}
	return nil
}

// Kill ends the tenant with SIGKILL and reaps it.
func (t *Tenant) Kill() {
	_ = t.In.Close()
	select {
	case <-t.Done: // its pid may belong to another process by now
		return
	default:
	}
	if t.cmd != nil {
		_ = t.cmd.Process.Kill()
	} else {
		_ = syscall.Kill(t.ID, syscall.SIGKILL)
	}
	<-t.Done
}

func (t *Tenant) gone(err error) error {
	return fmt.Errorf("tenant %s is gone: %w%s", t.Name, err, t.errs.Suffix())
}

// Samples returns the samples so far.
func (t *Tenant) Samples() []Sample {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Sample(nil), t.samples...)
}

// Final returns the tenant's own final account.
func (t *Tenant) Final() finalLine {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.final == nil {
		return finalLine{}
	}
	return *t.final
}

// Tail keeps the end of what a child writes to stderr, for error texts.
type Tail struct {
	mu  sync.Mutex
	buf []byte
}

func (b *Tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf = append(b.buf, p...)
	if len(b.buf) > 4096 {
		b.buf = b.buf[len(b.buf)-2048:]
	}
	return len(p), nil
}

// Suffix is ": last line", or nothing.
func (b *Tail) Suffix() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(b.buf)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return ": " + last
	}
	return ""
}

// WithEnv is this process's environment without XSCHED_ settings, and these.
func WithEnv(extra ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "XSCHED_") {
			env = append(env, kv)
		}
	}
	return append(env, extra...)
}
