// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/seqpacket"
)

// Client is the daemon's side of the guardian, which starts with the first attached process and
// restarts if it dies.
type Client struct {
	command []string
	place   driver.Place
	log     *slog.Logger

	supervised, replaced atomic.Int64 // supervised processes, and replaced supervisors

	mu       sync.Mutex
	sock     int // -1: not started
	seq      uint64
	cmd      *exec.Cmd
	exited   chan struct{}
	wards    map[uint64]driver.Ward
	restarts int
	closed   bool
}

var _ driver.Guardian = (*Client)(nil)

// ErrClosed reports that the daemon is stopping.
var ErrClosed = errors.New("guardian is closed")

const (
	answerTime = 2 * time.Second // limit for an answer
	endTime    = 3 * time.Second // limit for Close to wait for pending restores
)

// NewClient starts nothing yet. command is the program with its arguments; the program receives its
// socket as descriptor 3.
func NewClient(command []string, place driver.Place, log *slog.Logger) *Client {
	return &Client{command: command, place: place, log: log, sock: -1, wards: map[uint64]driver.Ward{}}
}

// Keep guards a process. The daemon must not act on the process before Keep succeeds. The client
// keeps duplicates for a replacement guardian.
func (c *Client) Keep(w driver.Ward) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if err := c.start(); err != nil {
		return err
	}
	own, err := duplicate(w)
	if err != nil {
		return err
	}
	if err := c.hand(own); err != nil {
		// The guardian may have accepted after the timeout; the process is still untouched.
		_ = c.tell(message{Op: "detach", Session: w.Session, Restored: true}, nil)
		closeWard(own)
		return err
	}
	c.wards[w.Session] = own
	return nil
}

// Update replaces the restore data of a guarded session.
func (c *Client) Update(session uint64, state json.RawMessage, fds []int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.wards[session]
	if !ok || c.closed {
		return ErrClosed
	}
	w := old
	w.State, w.FDs = state, fds
	own, err := duplicate(w)
	if err != nil {
		return err
	}
	if err = c.start(); err == nil {
		err = c.hand(own)
	}
	if err != nil {
		closeWard(own)
		return err
	}
	c.wards[session] = own
	closeWard(old)
	return nil
}

// Drop ends the guarding of a session. Unless restored, the guardian first restores the process.
func (c *Client) Drop(session uint64, restored bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.wards[session]
	if !ok {
		return
	}
	delete(c.wards, session)
	defer closeWard(w)
	var err error
	if c.sock < 0 {
		if restored {
			return
		}
		if err = c.start(); err == nil {
			err = c.hand(w)
		}
	}
	if err == nil {
		err = c.ask(message{Op: "detach", Session: session, Restored: restored}, nil)
	}
	if err != nil && !restored {
		c.log.Error("process is not guarded", "pid", w.PID, "err", err)
	}
}

// Close ends the guardian, which first restores its remaining processes and may outlive the daemon
// for that.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	for id, w := range c.wards {
		closeWard(w)
		delete(c.wards, id)
	}
	if c.sock >= 0 {
		_ = unix.Close(c.sock)
		c.sock = -1
	}
	exited, cmd := c.exited, c.cmd
	c.mu.Unlock()
	if exited != nil {
		select {
		case <-exited:
		case <-time.After(endTime):
			c.log.Warn("guardian is still restoring processes", "guardian", cmd.Process.Pid)
		}
	}
}

// Stats returns the guardian's pid (0: not running), the number of guarded processes, and the
// number of restarts, supervisors included.
func (c *Client) Stats() (pid, attached, restarts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock >= 0 {
		pid = c.cmd.Process.Pid
	}
	return pid, len(c.wards) + int(c.supervised.Load()), c.restarts + int(c.replaced.Load())
}

// start starts the guardian if needed. Preconditions: c.mu is held.
func (c *Client) start() error {
	if c.sock >= 0 {
		return nil
	}
	sock, cmd, err := spawn(c.command)
	if err != nil {
		return fmt.Errorf("start guardian: %w", err)
	}
	tv := unix.NsecToTimeval(int64(answerTime))
	_ = unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	c.sock, c.cmd, c.exited = sock, cmd, make(chan struct{})
	go c.wait(cmd, sock, c.exited)
	if err := c.ask(message{Op: "start", Place: c.place}, nil); err != nil {
		c.drop()
		return fmt.Errorf("start guardian: %w", err)
	}
	return nil
}

// wait replaces a guardian that died while processes are guarded.
func (c *Client) wait(cmd *exec.Cmd, sock int, exited chan struct{}) {
	err := cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	close(exited)
	if c.closed || c.sock != sock || c.cmd != cmd {
		return
	}
	c.log.Warn("guardian ended, starting another", "err", err)
	c.drop()
	c.restarts++
	if len(c.wards) == 0 {
		return
	}
	if err := c.start(); err != nil {
		c.log.Error("guardian not replaced: attached processes are not guarded", "err", err)
		return
	}
	for _, w := range c.wards {
		if err := c.hand(w); err != nil {
			c.log.Error("process is not guarded", "pid", w.PID, "err", err)
		}
	}
}

// drop closes the socket. Preconditions: c.mu is held.
func (c *Client) drop() {
	if c.sock >= 0 {
		_ = unix.Close(c.sock)
		c.sock = -1
	}
}

// hand sends a process to the guardian. Preconditions: c.mu is held.
func (c *Client) hand(w driver.Ward) error {
	m := message{Op: "attach", Session: w.Session, Driver: w.Driver, PID: w.PID, State: w.State}
	return c.ask(m, append([]int{w.Page, w.PIDFD}, w.FDs...))
}

// ask sends a message and waits for the reply. Preconditions: c.mu is held.
func (c *Client) ask(m message, fds []int) error {
	if err := c.tell(m, fds); err != nil {
		return err
	}
	for end := time.Now().Add(answerTime); ; {
		var r reply
		if _, err := seqpacket.Receive(c.sock, &r); err != nil {
			return fmt.Errorf("guardian: %w", err)
		}
		switch {
		case r.Seq == c.seq && r.Error != "":
			return fmt.Errorf("guardian: %s", r.Error)
		case r.Seq == c.seq:
			return nil
		case time.Now().After(end): // only late replies to abandoned messages arrived
			return errors.New("guardian: no answer in time")
		}
	}
}

// tell sends a message without waiting for the reply. Preconditions: c.mu is held.
func (c *Client) tell(m message, fds []int) error {
	c.seq++
	m.Seq = c.seq
	return seqpacket.Send(c.sock, m, fds)
}

func duplicate(w driver.Ward) (driver.Ward, error) {
	all := append([]int{w.Page, w.PIDFD}, w.FDs...)
	own := make([]int, 0, len(all))
	for _, fd := range all {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			seqpacket.CloseAll(own)
			return driver.Ward{}, fmt.Errorf("duplicate descriptor: %w", err)
		}
		own = append(own, n)
	}
	w.Page, w.PIDFD, w.FDs = own[0], own[1], own[2:]
	return w, nil
}

func closeWard(w driver.Ward) {
	_ = unix.Close(w.Page)
	_ = unix.Close(w.PIDFD)
	seqpacket.CloseAll(w.FDs)
}

// Guarding counts supervised processes.
func (c *Client) Guarding(delta int) { c.supervised.Add(int64(delta)) }

// Replaced counts supervisors that were replaced.
func (c *Client) Replaced() { c.replaced.Add(1) }

// Spawn starts a guardian process for one driver.
func (c *Client) Spawn(args ...string) (sock int, cmd *exec.Cmd, err error) {
	return spawn(append(slices.Clone(c.command), args...))
}

// spawn starts a process with one end of a socket as descriptor 3.
func spawn(command []string) (sock int, cmd *exec.Cmd, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "guardian")
	defer func() { _ = theirs.Close() }()
	tv := unix.NsecToTimeval(int64(answerTime))
	_ = unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
	cmd = exec.Command(command[0], command[1:]...)
	cmd.ExtraFiles = []*os.File{theirs}
	// A new session shields the guardian from the daemon's terminal signals.
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = unix.Close(pair[0])
		return -1, nil, err
	}
	return pair[0], cmd, nil
}
