// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"xsched/test/proc"
)

// spec describes a tenant.
type spec struct {
	role     string
	priority int
	kernelUS int
	feed     int    // kernels of a request, each after ten times as much CPU time; 0: one
	load     string // command that starts the load
	device   int
	bare     bool // without the shim; the world attaches it
	uid      uint32
	old      bool          // its shim is that of the other binary
	offset   time.Duration // of its monotonic clock, in a time namespace
	spaces   []string      // namespaces: time, pid, user
}

// tenant is a running load generator that is started again when it dies.
type tenant struct {
	spec
	w *world

	mu       sync.Mutex
	cmd      *exec.Cmd
	id       int // of the program itself
	in       io.WriteCloser
	lines    chan string
	gone     chan struct{}
	progress int64 // end of the last iteration
	count    int
	excuses  map[string]int
	held     bool // suspended by hand
	heldAt   int64
	away     bool // detached by a fault
	ended    bool // by the harness: an exit is no violation
	stderr   proc.Tail
	begun    int64

	watch watch // of the world's watcher

	life sync.Mutex // one fault at a time replaces the program
	hand sync.Mutex // one fault at a time suspends or detaches it
}

// isGone reports that the program is not managed now: it is replaced or detached.
func (t *tenant) isGone() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.away || len(t.excuses) > 0
}

func (t *tenant) pid() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id
}

// excuse suspends the promises to this tenant until the result is called.
func (t *tenant) excuse(why string) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.excuses[why]++
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.excuses[why]--; t.excuses[why] == 0 {
			delete(t.excuses, why)
		}
	})
}

func (t *tenant) excused() (why string, yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for why = range t.excuses {
		return why, true
	}
	return "", false
}

// start runs the program and waits until it is ready, then starts its load.
func (t *tenant) start() error {
	end := t.excuse("starting")
	defer end()
	cmd := t.w.command(t.spec)
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", t.role, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", t.role, err)
	}
	cmd.Stderr = &t.stderr
	if err := proc.Start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", t.role, err)
	}
	t.mu.Lock()
	t.cmd, t.in, t.id, t.ended = cmd, in, cmd.Process.Pid, false
	t.lines, t.gone, t.begun = make(chan string, 64), make(chan struct{}), now()
	lines, gone := t.lines, t.gone
	t.mu.Unlock()
	go t.read(cmd, out, lines, gone)
	if _, err := t.expect("R", 20*time.Second); err != nil {
		return err
	}
	if err := t.send(t.load); err != nil {
		return err
	}
	return nil
}

func (t *tenant) read(cmd *exec.Cmd, out io.Reader, lines chan<- string, gone chan<- struct{}) {
	scan := bufio.NewScanner(out)
	for scan.Scan() {
		line := scan.Text()
		f := strings.Fields(line)
		switch {
		case len(f) == 3 && f[0] == "I":
			if end, err := strconv.ParseInt(f[2], 10, 64); err == nil {
				t.mu.Lock()
				t.progress, t.count = max(t.progress, end-int64(t.offset)), t.count+1
				t.mu.Unlock()
			}
		case len(f) == 2 && f[0] == "C": // from enter: the program's PID
			if id, err := strconv.Atoi(f[1]); err == nil {
				t.mu.Lock()
				t.id = id
				t.mu.Unlock()
			}
		default:
			select {
			case lines <- line:
			default:
			}
		}
	}
	err := cmd.Wait()
	t.mu.Lock()
	ended, stderr := t.ended, t.stderr.Last()
	t.mu.Unlock()
	close(gone) // now restart may begin the next life, which resets ended
	if !ended && !t.w.closing.Load() && !strings.Contains(stderr, needsDaemon) {
		t.w.ledger.violate(now()-1e9, "died", t.role, "ended by itself: %v %s", err, stderr)
	}
}

func (t *tenant) send(line string) error {
	t.mu.Lock()
	in := t.in
	t.mu.Unlock()
	if in == nil {
		return errors.New(t.role + " is not running")
	}
	if _, err := io.WriteString(in, line+"\n"); err != nil {
		return fmt.Errorf("tell %s %q: %w", t.role, line, err)
	}
	return nil
}

// expect returns the next line that starts with prefix. The limit excludes stalls.
func (t *tenant) expect(prefix string, limit time.Duration) (string, error) {
	t.mu.Lock()
	lines, gone := t.lines, t.gone
	t.mu.Unlock()
	begin := now()
	for {
		select {
		case line := <-lines:
			if strings.HasPrefix(line, prefix) {
				return line, nil
			}
		case <-gone:
			return "", fmt.Errorf("%s ended before %q: %s", t.role, prefix, t.stderr.Last())
		case <-time.After(20 * time.Millisecond):
			if t.w.stalls.elapsed(begin, now()) > limit {
				return "", fmt.Errorf("no %q from %s within %v: %s", prefix, t.role, limit, t.stderr.Last())
			}
		}
	}
}

// iterations returns the number of iterations and the end of the last one.
func (t *tenant) iterations() (int, int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count, t.progress
}

// kill ends the program with SIGKILL and waits for it.
func (t *tenant) kill() {
	t.mu.Lock()
	t.ended = true
	cmd, gone := t.cmd, t.gone
	id := t.id
	t.mu.Unlock()
	if cmd == nil {
		return
	}
	select {
	case <-gone:
		return
	default:
	}
	if id != cmd.Process.Pid {
		_ = syscall.Kill(id, syscall.SIGKILL) // its parent, enter, still waits: the number is not reused
	} else {
		_ = cmd.Process.Kill()
	}
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		_ = cmd.Process.Kill()
		<-gone
	}
}

func (t *tenant) signal(s syscall.Signal) {
	t.mu.Lock()
	cmd, id := t.cmd, t.id
	t.mu.Unlock()
	switch {
	case cmd == nil:
	case id == cmd.Process.Pid:
		_ = cmd.Process.Signal(s)
	default:
		_ = syscall.Kill(id, s)
	}
}

// restart kills the program and starts it again.
func (t *tenant) restart() error {
	end := t.excuse("killed")
	defer end()
	t.kill()
	t.mu.Lock()
	t.held = false
	t.mu.Unlock()
	return t.start()
}

// check pauses the load, compares the checksum, and goes on.
func (t *tenant) check() error {
	end := t.excuse("paused")
	defer end()
	if err := t.send("pause"); err != nil {
		return err
	}
	if _, err := t.expect("P", 10*time.Second); err != nil {
		return err
	}
	if err := t.send("report"); err != nil {
		return err
	}
	line, err := t.expect("S ", 10*time.Second)
	if err != nil {
		return err
	}
	if f := strings.Fields(line); len(f) != 4 || f[2] != f[3] {
		return errWrong{line}
	}
	return t.send(t.load)
}

// errWrong is a wrong checksum.
type errWrong struct{ line string }

func (e errWrong) Error() string { return "wrong checksum: " + e.line }

// finish ends the program by itself and returns its error.
func (t *tenant) finish() error {
	t.mu.Lock()
	t.ended = true
	in, gone, cmd := t.in, t.gone, t.cmd
	t.mu.Unlock()
	if cmd == nil {
		return nil
	}
	_ = in.Close()
	begin := now()
	for {
		select {
		case <-gone:
			if code := cmd.ProcessState.ExitCode(); code != 0 {
				return fmt.Errorf("%s ended with %v: %s", t.role, cmd.ProcessState, t.stderr.Last())
			}
			return nil
		case <-time.After(20 * time.Millisecond):
			if t.w.stalls.elapsed(begin, now()) > 10*time.Second {
				t.kill()
				return fmt.Errorf("%s did not end within 10 s", t.role)
			}
		}
	}
}
