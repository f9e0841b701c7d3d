// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/health"
	"xsched/internal/identity"
	"xsched/internal/seqpacket"
)

// Options configure a Client.
type Options struct {
	// Command starts a guardian process, which receives its socket as descriptor 3.
	Command []string
	Place   driver.Place
	// Version of this release. A guardian of another release is not used.
	Version string
	// Cgroup of the guardian that the client starts; empty: the daemon's.
	Cgroup string
	Log    *slog.Logger
	Busy   *health.Part // marks the client's work; may be nil
	Alive  *health.Part // beats while the guardian answers; may be nil
}

// Client is the daemon's side of the guardian. With the first attached process it connects to the
// guardian's service, or else starts a guardian of its own. A guardian that dies is replaced.
type Client struct {
	options Options
	log     *slog.Logger
	journal journal

	supervised, replaced atomic.Int64 // supervised processes, and replaced supervisors

	ending chan struct{} // closed by Close

	// state is for readers, who never wait for mu: it is held while a guardian answers.
	state atomic.Pointer[clientState]

	mu       sync.Mutex
	link     *link // nil: no guardian
	silent   bool  // the service did not answer; only rejoin tries it
	wards    map[uint64]driver.Ward
	spare    spare
	owed     map[uint64]driver.Ward // dropped, and no guardian has promised to restore them
	restarts int
	retrying bool // settle runs again later
	closed   bool
	warned   bool // about a service that can't be used
}

// clientState is what Stats returns.
type clientState struct{ pid, wards, restarts int }

var _ driver.Guardian = (*Client)(nil)

// ErrClosed reports that the daemon is stopping.
var ErrClosed = errors.New("guardian is closed")

// errSilent reports a guardian that did not answer within answerTime. It is not asked again.
var errSilent = errors.New("no answer in time")

const (
	answerTime = 2 * time.Second // limit for an answer
	endTime    = 3 * time.Second // limit for Close to wait for pending restores
	rejoinTime = time.Second     // interval of attempts to return to the service, and to settle
)

// NewClient starts no guardian yet.
func NewClient(o Options) *Client {
	o.Busy.End()
	o.Alive.End()
	c := &Client{
		options: o, log: o.Log, journal: journalOf(o.Place.Dir), ending: make(chan struct{}),
		wards: map[uint64]driver.Ward{}, owed: map[uint64]driver.Ward{},
	}
	go c.attend()
	return c
}

func (c *Client) lock() {
	c.mu.Lock()
	c.options.Busy.Begin()
}

// unlock publishes the state and releases mu.
func (c *Client) unlock() {
	c.options.Busy.End()
	st := &clientState{wards: len(c.wards), restarts: c.restarts}
	if c.link != nil {
		st.pid = c.link.pid
	}
	c.state.Store(st)
	c.mu.Unlock()
}

// Keep guards a process. The daemon must not act on the process before Keep succeeds. The client
// keeps duplicates for a replacement guardian.
func (c *Client) Keep(w driver.Ward) error {
	c.lock()
	defer c.unlock()
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
	l := c.link
	if err := c.hand(l, own); err != nil {
		// The guardian may have accepted after the timeout; the process is still untouched.
		_ = c.post(l, message{Op: "detach", Session: w.Session, Restored: true}, nil)
		c.journal.remove(recordName(own))
		closeWard(own)
		return err
	}
	c.wards[w.Session] = own
	c.spare.fill()
	return nil
}

// Update replaces the restore data of a guarded session.
func (c *Client) Update(session uint64, state json.RawMessage, fds []int) error {
	c.lock()
	defer c.unlock()
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
		err = c.hand(c.link, own)
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
	c.lock()
	defer c.unlock()
	w, ok := c.wards[session]
	if !ok {
		return
	}
	delete(c.wards, session)
	if !restored {
		c.owed[session] = w
		c.settle()
		return
	}
	defer closeWard(w)
	c.journal.remove(recordName(w)) // otherwise the guardian does so
	if c.link != nil {
		delete(c.link.has, session)
		_ = c.ask(c.link, message{Op: "detach", Session: session, Restored: true}, nil)
	}
}

// settle hands a guardian every process that it lacks, and those it must restore. What fails is tried
// again later: the guardian may have died at this moment. Preconditions: c.mu is held.
func (c *Client) settle() {
	if c.closed || len(c.wards)+len(c.owed) == 0 {
		return
	}
	c.spare.release()
	defer c.spare.fill()
	failed := c.start()
	for _, w := range c.wards {
		if c.link != nil {
			failed = errors.Join(failed, c.guard(w))
		}
	}
	for id, w := range c.owed {
		if c.link == nil {
			break
		}
		err := c.guard(w)
		if err == nil {
			err = c.ask(c.link, message{Op: "detach", Session: id}, nil)
		}
		if identity.Ended(w.PIDFD) {
			c.journal.remove(recordName(w))
		} else if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if c.link != nil {
			delete(c.link.has, id)
		}
		delete(c.owed, id)
		closeWard(w)
	}
	if failed != nil {
		c.log.Error("attached processes are not guarded; trying again", "err", failed)
		c.retry()
	}
}

// retry settles again soon. Preconditions: c.mu is held.
func (c *Client) retry() {
	if c.retrying {
		return
	}
	c.retrying = true
	time.AfterFunc(rejoinTime, func() {
		c.lock()
		defer c.unlock()
		c.retrying = false
		c.settle()
	})
}

// guard hands a process to the guardian unless the guardian has it. Preconditions: c.mu is held.
func (c *Client) guard(w driver.Ward) error {
	if c.link.has[w.Session] || identity.Ended(w.PIDFD) {
		return nil
	}
	if err := c.hand(c.link, w); err != nil {
		return fmt.Errorf("process %d: %w", w.PID, err)
	}
	return nil
}

// Close ends the connection. The guardian first restores its remaining processes and may outlive
// the daemon for that.
func (c *Client) Close() {
	c.lock()
	c.settle() // the last chance of a process that no guardian has
	if !c.closed {
		close(c.ending)
	}
	c.closed = true
	c.spare.release()
	for _, all := range []map[uint64]driver.Ward{c.wards, c.owed} {
		for id, w := range all {
			closeWard(w)
			delete(all, id)
		}
	}
	l := c.link
	if l != nil {
		_ = unix.Shutdown(l.sock, unix.SHUT_WR)
	}
	c.unlock()
	if l == nil {
		return
	}
	select {
	case <-l.exited:
	case <-time.After(endTime):
		c.log.Warn("guardian is still restoring processes", "guardian", l.pid)
	}
}

// Stats returns the guardian's pid (0: not running), the number of guarded processes, and the
// number of restarts, supervisors included. It does not wait for a guardian.
func (c *Client) Stats() (pid, attached, restarts int) {
	if st := c.state.Load(); st != nil {
		pid, attached, restarts = st.pid, st.wards, st.restarts
	}
	return pid, attached + int(c.supervised.Load()), restarts + int(c.replaced.Load())
}

// start connects to a guardian if needed. Preconditions: c.mu is held.
func (c *Client) start() error {
	if c.link != nil {
		return nil
	}
	if !c.silent {
		l, err := c.dial()
		if err == nil {
			c.watch(l)
			c.link, c.warned = l, false
			return nil
		}
		c.refused(err)
	}
	l, err := c.launch()
	if err != nil {
		return fmt.Errorf("start guardian: %w", err)
	}
	c.link = l
	return nil
}

// lost replaces a guardian that ended while processes are guarded.
func (c *Client) lost(l *link, err error) {
	c.lock()
	defer c.unlock()
	close(l.exited)
	if c.link != l {
		return
	}
	c.drop(l)
	c.link = nil
	if c.closed {
		return
	}
	c.log.Warn("guardian ended, starting another", "err", err)
	c.restarts++
	c.settle()
}

// rejoin moves the processes of this daemon's own guardian to the service when the service is back.
func (c *Client) rejoin(own *link) {
	for {
		select {
		case <-own.exited:
			return
		case <-time.After(rejoinTime):
		}
		if c.move(own) {
			return
		}
	}
}

func (c *Client) move(own *link) (done bool) {
	l, err := c.dial() // without mu: a service that does not answer delays nobody
	c.lock()
	defer c.unlock()
	if err != nil {
		c.refused(err)
		return c.closed || c.link != own
	}
	if c.closed || c.link != own {
		c.drop(l)
		return true
	}
	c.silent, c.warned = false, false
	c.watch(l)
	for _, w := range c.wards {
		if err := c.hand(l, w); err != nil {
			for id := range c.wards {
				_ = c.post(l, message{Op: "detach", Session: id, Restored: true}, nil)
			}
			c.drop(l)
			return false
		}
	}
	c.link = l
	for id := range c.wards {
		_ = c.post(own, message{Op: "detach", Session: id, Restored: true}, nil)
	}
	c.drop(own)
	c.log.Info("guardian service is back", "guardian", l.pid)
	return true
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
	return spawn(append(slices.Clone(c.options.Command), args...))
}
