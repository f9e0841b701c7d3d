// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control/client"
	"xsched/internal/state"
	"xsched/test/proc"
)

// daemon keeps `xsched serve` running, as a service manager would.
type daemon struct {
	w      *world
	client *client.Client
	log    proc.Tail

	mu      sync.Mutex
	cmd     *exec.Cmd // nil: not running
	old     bool      // the next start uses the other binary
	isOld   bool      // the running one
	down    time.Duration
	started int64
	ready   int64 // when it first answered; 0: not yet
	stops   map[*exec.Cmd]int
	leaving bool  // it was asked to end
	wedged  int64 // until when the engine loop is blocked
	policy  string
	mode    string
	settled int64         // last change of policy or mode
	ended   chan struct{} // the supervisor has ended
	blocks  atomic.Int32  // faults during which nobody reads the daemon's stderr
}

const usualDown = 100 * time.Millisecond

func startDaemon(w *world) *daemon {
	d := &daemon{
		w: w, client: client.New(filepath.Join(w.dir, "control.sock")),
		down: usualDown, stops: map[*exec.Cmd]int{}, ended: make(chan struct{}),
	}
	go d.supervise()
	return d
}

func (d *daemon) supervise() {
	defer close(d.ended)
	for !d.w.closing.Load() {
		if err := d.once(); err != nil {
			d.w.ledger.violate(now(), "start", "daemon", "can't be started: %v", err)
			return
		}
		d.mu.Lock()
		down := d.down
		d.down = usualDown
		d.mu.Unlock()
		if !d.w.closing.Load() {
			time.Sleep(down)
		}
	}
}

// once runs the daemon until it ends.
func (d *daemon) once() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	d.mu.Lock()
	old := d.old
	d.mu.Unlock()
	args := d.w.serveArgs()
	if !old {
		args = append(args, "--audit", d.w.auditFile(), "--policy", d.w.setup.policy())
		if !d.w.setup.State {
			args = append(args, "--no-state")
		}
	}
	cmd := exec.Command(d.w.binary(old), args...)
	cmd.Env = d.w.env()
	cmd.Stderr = write
	err = proc.Start(cmd)
	_ = write.Close()
	if err != nil {
		_ = read.Close()
		return err
	}
	d.w.memory.add(cmd.Process.Pid)
	_, _ = unix.FcntlInt(read.Fd(), unix.F_SETPIPE_SZ, 4096) // a fault fills it soon
	go d.drain(read)
	at := now()
	initial := d.w.setup.policy()
	if old {
		initial = "HPF"
	}
	d.mu.Lock()
	d.leaving = false
	d.cmd, d.started, d.ready, d.wedged, d.policy, d.mode, d.settled, d.isOld = cmd, at, 0, 0, initial, "live", at, old
	d.mu.Unlock()
	go d.awaitReady(cmd)
	err = cmd.Wait()
	d.mu.Lock()
	d.cmd, d.ready = nil, 0
	delete(d.stops, cmd)
	d.mu.Unlock()
	d.client.Close()
	if killedBy(err, syscall.SIGHUP) && !old {
		d.w.ledger.violate(now(), "hangup", "daemon", "SIGHUP has ended it")
	}
	_, _ = d.log.Write([]byte("-- daemon ended: " + exitText(err) + "\n"))
	return nil
}

// killedBy reports that a signal has ended a process.
func killedBy(err error, s syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == s
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// drain reads the daemon's stderr, except while a fault blocks it.
func (d *daemon) drain(read *os.File) {
	defer read.Close()
	buffer := make([]byte, 1<<15)
	for {
		for d.blocks.Load() > 0 {
			time.Sleep(5 * time.Millisecond)
		}
		n, err := read.Read(buffer)
		_, _ = d.log.Write(buffer[:n])
		if err != nil {
			return
		}
	}
}

func (d *daemon) awaitReady(cmd *exec.Cmd) {
	d.mu.Lock()
	keeps, initial := d.w.setup.State && !d.isOld, d.policy
	d.mu.Unlock()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		v, err := d.client.Version(ctx)
		policy, mode := initial, "live"
		if err == nil && keeps { // what was set in the daemon before
			policy, mode, err = d.settings(ctx)
		}
		cancel()
		d.mu.Lock()
		if d.cmd != cmd {
			d.mu.Unlock()
			return
		}
		if err == nil && v.PID == cmd.Process.Pid {
			d.ready, d.policy, d.mode = now(), policy, mode
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
}

// settings reads the daemon's policy and mode.
func (d *daemon) settings(ctx context.Context) (policy, mode string, err error) {
	p, err := d.client.Policy(ctx)
	m, err2 := d.client.Mode(ctx)
	return p.Name, string(m.Mode), errors.Join(err, err2)
}

// health is what the model knows about the daemon.
type health struct {
	pid     int  // 0: not running
	native  bool // it can't schedule: programs must run by themselves
	ready   int64
	since   int64 // of this process
	policy  string
	mode    string
	settled int64 // the last change of policy or mode
	old     bool
}

func (d *daemon) health() health {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := health{ready: d.ready, since: d.started, policy: d.policy, mode: d.mode, settled: d.settled, old: d.isOld}
	if d.cmd == nil {
		h.native = true
		return h
	}
	h.pid = d.cmd.Process.Pid
	h.native = d.stops[d.cmd] > 0 || now() < d.wedged || d.leaving
	return h
}

func (d *daemon) process() *exec.Cmd {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd
}

var errDown = errors.New("the daemon is not running")

// signal sends a signal to the running daemon and sets how long it stays down if it dies.
func (d *daemon) signal(s syscall.Signal, down time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil {
		return errDown
	}
	d.down = down
	if s != syscall.SIGKILL {
		d.leaving = true // it resumes everybody, then ends
	}
	return d.cmd.Process.Signal(s)
}

// hangup sends SIGHUP, which ends the previous release only.
func (d *daemon) hangup(down time.Duration) error {
	d.mu.Lock()
	cmd, old, ready := d.cmd, d.isOld, d.ready != 0
	d.mu.Unlock()
	switch {
	case cmd == nil || !ready: // a process that has just begun handles no signal yet
		return errDown
	case old:
		return d.signal(syscall.SIGHUP, down)
	}
	return cmd.Process.Signal(syscall.SIGHUP)
}

// wedge notes that the engine loop is blocked. The loop carries out requests one after the other, so
// that overlapping wedges add up.
func (d *daemon) wedge(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wedged = max(d.wedged, now()) + int64(t)
}

// stop sends SIGSTOP; the result ends it. Stops overlap.
func (d *daemon) stop() (func(), error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	cmd := d.cmd
	if cmd == nil {
		return nil, errDown
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	d.stops[cmd]++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.stops[cmd]--; d.stops[cmd] <= 0 {
			delete(d.stops, cmd)
			_ = cmd.Process.Signal(syscall.SIGCONT)
		}
	}, nil
}

// renew ends a daemon of the other release; the next one is of the release under test. One that
// can't end is killed: its defects are its own.
func (d *daemon) renew() {
	d.mu.Lock()
	isOld, cmd := d.isOld, d.cmd
	d.old = false
	d.mu.Unlock()
	if !isOld {
		return
	}
	gone := func() bool { return d.process() != cmd }
	_ = d.signal(syscall.SIGTERM, usualDown)
	if !d.w.eventually(5*time.Second, gone) {
		_ = cmd.Process.Kill()
		d.w.eventually(10*time.Second, gone)
	}
}

// forgetState removes the state file under a daemon of the other release, which knows none: what it
// resumes would be suspended again by the next daemon of this release.
func (d *daemon) forgetState() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isOld && d.cmd != nil {
		_ = os.Remove(filepath.Join(d.w.dir, state.FileName))
	}
}

// awaitUp waits until the daemon answers.
func (d *daemon) awaitUp(limit time.Duration) bool {
	return d.w.eventually(limit, func() bool { return d.health().ready != 0 })
}

// call bounds a request to the daemon.
func call[T any](limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return f(ctx)
}

// processes lists the processes of this world, except this one.
func (w *world) processes(word string) (pids []int) {
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil
	}
	mark := "XSCHED_DIR=" + w.dir + "\x00"
	for _, path := range all {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil || len(line) == 0 || !strings.Contains(string(line), word) {
			continue
		}
		if env, err := os.ReadFile(path); err == nil && strings.Contains(string(env)+"\x00", mark) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// guardians lists the guardian processes of this world.
func (w *world) guardians() []int { return w.processes("\x00guardian") }

// signalAll sends a signal through descriptors, so that no reused PID receives it.
func (w *world) signalAll(pids []int, s syscall.Signal, word string) (n int) {
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err == nil && strings.Contains(string(line), word) && unix.PidfdSendSignal(fd, s, nil, 0) == nil {
			n++
		}
		_ = unix.Close(fd)
	}
	return n
}
