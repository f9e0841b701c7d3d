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

// tenant is one running load generator. It is driven by lines on its stdin and
// tells about every iteration on its stdout.
type tenant struct {
	name string
	cmd  *exec.Cmd // nil: somebody else's child, with this pid
	id   int
	in   io.WriteCloser
	errs tailBuffer

	events chan string // lines that are not samples: R, P, S ...
	done   chan struct{}

	mu      sync.Mutex
	samples []Sample
	final   *finalLine
	ended   error

	// Of one that schedules itself: what the library counted, and when it had suspended itself.
	submitted uint64
	holds     []Window
}

// finalLine is a tenant's own account: S launches checksum expected.
type finalLine struct {
	launches uint64
	ok       bool
}

// startTenant runs argv; the tenant ends by itself when its stdin is closed.
func startTenant(name string, argv, env []string) (*tenant, error) {
	t := &tenant{name: name, events: make(chan string, 16), done: make(chan struct{})}
	t.cmd = exec.Command(argv[0], argv[1:]...)
	t.cmd.Env = env
	t.cmd.Stderr = &t.errs
	// A tenant whose channels are stopped can ignore everything but SIGKILL, and
	// must not outlive us.
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
	t.in = in
	go t.read(out)
	return t, nil
}

// pid is the tenant's: `xsched run` replaces itself by the command.
func (t *tenant) pid() int {
	if t.cmd == nil {
		return t.id
	}
	return t.cmd.Process.Pid
}

func (t *tenant) read(out io.Reader) {
	defer close(t.done)
	defer close(t.events)
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
		case t.events <- string(line):
		default: // nobody waits: a tenant must never block on us
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
func (t *tenant) parseOwn(line string) bool {
	var n uint64
	var w Window
	_, count := fmt.Sscanf(line, "Q %d", &n)
	_, hold := fmt.Sscanf(line, "H %d %d", &w.From, &w.To)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case count == nil:
		t.submitted = n
	case hold == nil:
		t.holds = append(t.holds, w)
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
	return finalLine{launches: n, ok: f[2] == f[3]}, err == nil
}

// tell sends a command.
func (t *tenant) tell(command string) error {
	if _, err := io.WriteString(t.in, command+"\n"); err != nil {
		return t.gone(err)
	}
	return nil
}

// await waits for a line that starts with this word.
func (t *tenant) await(ctx context.Context, word string, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case line, open := <-t.events:
			if !open {
				return t.gone(io.EOF)
			}
			if line == word || strings.HasPrefix(line, word+" ") {
				return nil
			}
		case <-timer.C:
			return fmt.Errorf("tenant %s (pid %d) did not answer %q within %v%s", t.name, t.pid(), word, limit, t.errs.suffix())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pause stops the tenant's load and waits until it has nothing in flight.
func (t *tenant) pause(ctx context.Context) error {
	if err := t.tell("pause"); err != nil {
		return err
	}
	return t.await(ctx, "P", 10*time.Second)
}

// quit lets the tenant finish and report, then reaps it.
func (t *tenant) quit(limit time.Duration) error {
	// An error here means that it is gone already; how it ended says more.
	_ = t.tell("quit")
	_ = t.in.Close()
	select {
	case <-t.done:
	case <-time.After(limit):
		t.kill()
		return fmt.Errorf("tenant %s (pid %d) did not end within %v", t.name, t.pid(), limit)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != nil {
		return fmt.Errorf("ended with %w%s", t.ended, t.errs.suffix())
	}
	if t.final == nil {
		return errors.New("ended without a report")
	}
	return nil
}

// kill ends the tenant whatever it does and reaps it.
func (t *tenant) kill() {
	_ = t.in.Close()
	select {
	case <-t.done: // and the number may be somebody else's by now
		return
	default:
	}
	if t.cmd != nil {
		_ = t.cmd.Process.Kill()
	} else {
		_ = syscall.Kill(t.id, syscall.SIGKILL)
	}
	<-t.done
}

func (t *tenant) gone(err error) error {
	return fmt.Errorf("tenant %s is gone: %w%s", t.name, err, t.errs.suffix())
}

// taken returns the samples so far.
func (t *tenant) taken() []Sample {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Sample(nil), t.samples...)
}

// report returns the tenant's own final account.
func (t *tenant) report() finalLine {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.final == nil {
		return finalLine{}
	}
	return *t.final
}

// tailBuffer keeps the end of what a child writes to stderr, for error texts.
type tailBuffer struct {
	mu  sync.Mutex
	buf []byte
}

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf = append(b.buf, p...)
	if len(b.buf) > 4096 {
		b.buf = b.buf[len(b.buf)-2048:]
	}
	return len(p), nil
}

// suffix is ": last line", or nothing.
func (b *tailBuffer) suffix() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(b.buf)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return ": " + last
	}
	return ""
}

// withEnv is this process's environment without XSCHED_ settings, and these.
func withEnv(extra ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "XSCHED_") {
			env = append(env, kv)
		}
	}
	return append(env, extra...)
}
