// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia"
)

// Client is the daemon's end. The guardian is started with the first process
// that needs it, and again should it die.
type Client struct {
	command    []string
	virtual    bool
	vgpuSocket string
	log        *slog.Logger

	traced, traceRestarts atomic.Int64 // processes with a tracer, and how often one was replaced

	mu       sync.Mutex
	sock     int // -1: not started
	seq      uint64
	cmd      *exec.Cmd
	exited   chan struct{}
	wards    map[uint64]Ward
	restarts int
	closed   bool
}

// Ward is a process to guard. The descriptors stay the caller's during Attach;
// the client keeps duplicates, for a guardian that has to be replaced.
type Ward struct {
	Session  uint64
	PID      int
	Page     int // memory file
	PIDFD    int
	Restores []nvidia.Restore
	FDs      []int // one for each restore
	Files    []nvidia.Candidate
}

// ErrClosed is a guardian of a daemon that is stopping.
var ErrClosed = errors.New("guardian is closed")

const (
	answerTime = 2 * time.Second // that the guardian may take to answer
	endTime    = 3 * time.Second // that Close waits for its last work
)

// NewClient prepares; nothing is started. command is the program and its
// arguments; it gets its socket as descriptor 3.
func NewClient(command []string, virtual bool, vgpuSocket string, log *slog.Logger) *Client {
	return &Client{command: command, virtual: virtual, vgpuSocket: vgpuSocket, log: log, sock: -1, wards: map[uint64]Ward{}}
}

// Attach has a process guarded; nothing may be done to it before this returned nil.
func (c *Client) Attach(w Ward) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if err := c.start(); err != nil {
		return err
	}
	own, err := w.duplicate()
	if err != nil {
		return err
	}
	if err := c.hand(own); err != nil {
		// It may have it all the same, by an answer that came too late; nothing was done to it yet.
		_ = c.tell(message{Op: "detach", Session: w.Session, Restored: true}, nil)
		own.close()
		return err
	}
	c.wards[w.Session] = own
	return nil
}

// Update tells what has to be restored from now on; the session is guarded already.
func (c *Client) Update(session uint64, restores []nvidia.Restore, fds []int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.wards[session]
	if !ok || c.closed {
		return ErrClosed
	}
	w := old
	w.Restores, w.FDs = restores, fds
	own, err := w.duplicate()
	if err != nil {
		return err
	}
	if err = c.start(); err == nil {
		err = c.hand(own)
	}
	if err != nil {
		own.close()
		return err
	}
	c.wards[session] = own
	old.close()
	return nil
}

// Detach ends the guarding of a session. restored says that its process is known to be
// free; otherwise the guardian goes on until it has set it free.
func (c *Client) Detach(session uint64, restored bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.wards[session]
	if !ok {
		return
	}
	delete(c.wards, session)
	defer w.close()
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
		c.log.Error("process left without a guardian", "pid", w.PID, "err", err)
	}
}

// Close ends the guardian. Whom it still has it sets free first; if that takes long, it
// outlives us.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	for id, w := range c.wards {
		w.close()
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
			c.log.Warn("guardian is still setting processes free", "guardian", cmd.Process.Pid)
		}
	}
}

// Stats returns the guardian's pid (0: not running), how many processes it and the tracers guard, and how often
// one of them was replaced.
func (c *Client) Stats() (pid, attached, restarts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock >= 0 {
		pid = c.cmd.Process.Pid
	}
	return pid, len(c.wards) + int(c.traced.Load()), c.restarts + int(c.traceRestarts.Load())
}

// start starts the process if there is none. Preconditions: c.mu is held.
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
	if err := c.ask(message{Op: "start", Virtual: c.virtual, VGPUSocket: c.vgpuSocket}, nil); err != nil {
		c.drop()
		return fmt.Errorf("start guardian: %w", err)
	}
	return nil
}

// wait replaces a guardian that died while there is somebody to guard.
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
		c.log.Error("guardian not replaced: attached processes are not covered", "err", err)
		return
	}
	for _, w := range c.wards {
		if err := c.hand(w); err != nil {
			c.log.Error("process not covered by guardian", "pid", w.PID, "err", err)
		}
	}
}

// drop gives the socket up. Preconditions: c.mu is held.
func (c *Client) drop() {
	if c.sock >= 0 {
		_ = unix.Close(c.sock)
		c.sock = -1
	}
}

// hand tells the guardian about a process. Preconditions: c.mu is held.
func (c *Client) hand(w Ward) error {
	m := message{Op: "attach", Session: w.Session, PID: w.PID, Restores: w.Restores, Files: w.Files}
	return c.ask(m, append([]int{w.Page, w.PIDFD}, w.FDs...))
}

// ask sends a message and waits for its answer. Preconditions: c.mu is held.
func (c *Client) ask(m message, fds []int) error {
	if err := c.tell(m, fds); err != nil {
		return err
	}
	for end := time.Now().Add(answerTime); ; {
		var r reply
		if _, err := receive(c.sock, &r); err != nil {
			return fmt.Errorf("guardian: %w", err)
		}
		switch {
		case r.Seq == c.seq && r.Error != "":
			return fmt.Errorf("guardian: %s", r.Error)
		case r.Seq == c.seq:
			return nil
		case time.Now().After(end): // this was the answer to one that was given up
			return errors.New("guardian: no answer in time")
		}
	}
}

// tell sends a message whose answer nobody may wait for. Preconditions: c.mu is held.
func (c *Client) tell(m message, fds []int) error {
	c.seq++
	m.Seq = c.seq
	return send(c.sock, m, fds)
}

func (w Ward) duplicate() (Ward, error) {
	all := append([]int{w.Page, w.PIDFD}, w.FDs...)
	own := make([]int, 0, len(all))
	for _, fd := range all {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			closeFDs(own)
			return Ward{}, fmt.Errorf("duplicate descriptor: %w", err)
		}
		own = append(own, n)
	}
	w.Page, w.PIDFD, w.FDs = own[0], own[1], own[2:]
	return w, nil
}

func (w Ward) close() {
	_ = unix.Close(w.Page)
	_ = unix.Close(w.PIDFD)
	closeFDs(w.FDs)
}
