// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
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
	seq    uint64
	has    map[uint64]bool // sessions that this guardian guards
}

func newLink(sock, pid int) *link {
	return &link{sock: sock, pid: pid, exited: make(chan struct{}), has: map[uint64]bool{}}
}

// limit bounds every wait of a socket: connect, send and receive.
func limit(sock int) {
	tv := unix.NsecToTimeval(int64(answerTime))
	_ = unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	_ = unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
}

// errNoService reports that no service listens.
var errNoService = errors.New("no guardian service")

// dial connects to the guardian's service. It needs no lock, because it uses only the options.
func (c *Client) dial() (*link, error) {
	l, err := connect(c.options.Place.Dir)
	if err != nil {
		return nil, err
	}
	if err := l.ask(c.hello(), nil); err != nil {
		_ = unix.Close(l.sock)
		return nil, err
	}
	return l, nil
}

// hello is the first message on a connection: it exchanges the versions.
func (c *Client) hello() message {
	return message{Op: "start", Place: c.options.Place, Version: c.options.Version}
}

// refused notes that the service can't be used. Preconditions: c.mu is held.
func (c *Client) refused(err error) {
	c.silent = errors.Is(err, errSilent)
	if !errors.Is(err, errNoService) && !c.warned {
		c.warned = true
		c.log.Warn("guardian service is not used", "err", err)
	}
}

// watch notices the end of a service's connection. It waits on a duplicate, because the client may
// close the socket meanwhile.
func (c *Client) watch(l *link) {
	watched, err := unix.FcntlInt(uintptr(l.sock), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		c.log.Warn("the end of the guardian service will be noticed late", "err", err)
		return
	}
	go func() {
		awaitHangup(watched)
		_ = unix.Close(watched)
		c.lost(l, errors.New("the service closed the connection"))
	}()
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
	limit(sock)
	l := newLink(sock, cmd.Process.Pid)
	go func() { c.lost(l, cmd.Wait()) }()
	if err := l.ask(c.hello(), nil); err != nil {
		c.drop(l)
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

// ask sends a message and waits for the reply. A guardian that does not answer is not asked again:
// otherwise each guarded process would wait for it. Preconditions: c.mu is held.
func (c *Client) ask(l *link, m message, fds []int) error {
	err := l.ask(m, fds)
	if errors.Is(err, errSilent) {
		c.forsake(l)
	}
	return err
}

// forsake gives up a guardian that does not answer. Another one gets its processes.
// Preconditions: c.mu is held.
func (c *Client) forsake(l *link) {
	c.drop(l)
	if c.link == l {
		c.link = nil
		c.restarts++
		c.retry()
	}
}

// post sends a message without waiting for the reply. Preconditions: c.mu is held.
func (c *Client) post(l *link, m message, fds []int) error { return l.send(m, fds) }

func (l *link) send(m message, fds []int) error {
	l.seq++
	m.Seq = l.seq
	return seqpacket.Send(l.sock, m, fds)
}

// errRefused reports that a guardian answered with an error.
var errRefused = errors.New("guardian")

// ask is for one caller at a time.
func (l *link) ask(m message, fds []int) error { return l.question(m, fds, &reply{}) }

// question is ask with the reply.
func (l *link) question(m message, fds []int, r *reply) error {
	silent := func(err error) error {
		if errors.Is(err, unix.EAGAIN) {
			err = errSilent
		}
		return fmt.Errorf("guardian: %w", err)
	}
	if err := l.send(m, fds); err != nil {
		return silent(err)
	}
	for end := time.Now().Add(answerTime); ; {
		*r = reply{}
		if _, err := seqpacket.Receive(l.sock, r); err != nil {
			return silent(err)
		}
		switch {
		case r.Seq == l.seq && r.Error != "":
			return fmt.Errorf("%w: %s", errRefused, r.Error)
		case r.Seq == l.seq:
			return nil
		case time.Now().After(end): // only late replies to abandoned messages arrived
			return silent(errSilent)
		}
	}
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
