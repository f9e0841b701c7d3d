// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/seqpacket"
)

// link is the connection to one guardian.
type link struct {
	sock   int
	pid    int
	exited chan struct{}
	has    map[uint64]bool // sessions that this guardian guards
}

func newLink(sock, pid int) *link {
	return &link{sock: sock, pid: pid, exited: make(chan struct{}), has: map[uint64]bool{}}
}

// begin exchanges versions on a new connection. Preconditions: c.mu is held.
func (c *Client) begin(l *link) error {
	tv := unix.NsecToTimeval(int64(answerTime))
	_ = unix.SetsockoptTimeval(l.sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	_ = unix.SetsockoptTimeval(l.sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
	return c.ask(l, message{Op: "start", Place: c.options.Place, Version: c.options.Version}, nil)
}

// dial connects to the guardian's service. Preconditions: c.mu is held.
func (c *Client) dial() (*link, error) {
	if c.options.Place.Dir == "" {
		return nil, errors.New("no runtime directory")
	}
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	l := newLink(sock, 0)
	err = unix.Connect(sock, &unix.SockaddrUnix{Name: filepath.Join(c.options.Place.Dir, ServiceSocket)})
	if err == nil {
		if l.pid, err = trusted(sock); err == nil {
			err = c.begin(l)
		}
		if err != nil && !c.warned {
			c.warned = true
			c.log.Warn("guardian service is not used", "err", err)
		}
	}
	if err != nil {
		_ = unix.Close(sock)
		return nil, err
	}
	c.warned = false
	// A duplicate, because the client closes sock while the goroutine waits.
	watched, err := unix.FcntlInt(uintptr(sock), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		_ = unix.Close(sock)
		return nil, err
	}
	go func() {
		awaitHangup(watched)
		_ = unix.Close(watched)
		c.lost(l, errors.New("the service closed the connection"))
	}()
	return l, nil
}

// trusted checks that the peer of a socket is this user, and returns its PID.
func trusted(sock int) (pid int, err error) {
	peer, err := unix.GetsockoptUcred(sock, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	if int(peer.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("the peer is uid %d", peer.Uid)
	}
	return int(peer.Pid), nil
}

func awaitHangup(sock int) {
	for {
		p := []unix.PollFd{{Fd: int32(sock), Events: unix.POLLRDHUP}}
		if n, err := unix.Poll(p, -1); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// launch starts a guardian of this daemon. Preconditions: c.mu is held.
func (c *Client) launch() (*link, error) {
	sock, cmd, err := spawn(c.options.Command)
	if err != nil {
		return nil, err
	}
	if err := isolate(c.options.Cgroup, cmd.Process.Pid); err != nil {
		c.log.Warn("guardian shares the daemon's cgroup", "err", err)
	}
	l := newLink(sock, cmd.Process.Pid)
	go func() { c.lost(l, cmd.Wait()) }()
	if err := c.begin(l); err != nil {
		_ = unix.Close(sock)
		l.sock = -1
		return nil, err
	}
	go c.rejoin(l)
	return l, nil
}

// drop ends a connection. Preconditions: c.mu is held.
func (c *Client) drop(l *link) {
	if l.sock >= 0 {
		_ = unix.Shutdown(l.sock, unix.SHUT_RDWR)
		_ = unix.Close(l.sock)
		l.sock = -1
	}
}

// hand records a process and sends it to the guardian. Preconditions: c.mu is held.
func (c *Client) hand(l *link, w driver.Ward) error {
	if err := c.journal.write(w, c.options.Place, l.pid); err != nil {
		return err
	}
	m := message{Op: "attach", Session: w.Session, Driver: w.Driver, PID: w.PID, State: w.State, Record: recordName(w)}
	if err := c.ask(l, m, append([]int{w.Page, w.PIDFD}, w.FDs...)); err != nil {
		return err
	}
	l.has[w.Session] = true
	return nil
}

// ask sends a message and waits for the reply. Preconditions: c.mu is held.
func (c *Client) ask(l *link, m message, fds []int) error {
	if err := c.tell(l, m, fds); err != nil {
		return err
	}
	for end := time.Now().Add(answerTime); ; {
		var r reply
		if _, err := seqpacket.Receive(l.sock, &r); err != nil {
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
func (c *Client) tell(l *link, m message, fds []int) error {
	c.seq++
	m.Seq = c.seq
	return seqpacket.Send(l.sock, m, fds)
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
