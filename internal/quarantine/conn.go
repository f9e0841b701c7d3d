// SPDX-License-Identifier: Apache-2.0

package quarantine

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrRights reports descriptors where none are accepted. They stay in the connection.
var ErrRights = errors.New("the connection carries descriptors, which are not accepted here")

// socket is what a connection and a listener share: the process that keeps a duplicate.
type socket struct {
	id uint64

	mu      sync.Mutex
	keeper  *keeper // nil: no process keeps the socket
	account string  // waits when a descriptor of the socket blocks
	closed  bool
}

// keepIn hands a duplicate of a file to the process in use.
func (s *socket) keepIn(op string, what kept, file syscall.Conn) {
	k, err := current()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeper = nil
	if err != nil || s.closed {
		return
	}
	if raw, err := file.SyscallConn(); err == nil && k.hand(op, s.id, what, raw) == nil {
		s.keeper = k
	}
}

// closeWith closes the daemon's own file, then the duplicate; alone closes a file without one.
func (s *socket) closeWith(file, alone func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	s.closed = true
	if s.keeper == nil {
		return alone()
	}
	err := file()
	s.keeper.release(s.id, s.account)
	return err
}

// Conn is a connection with a stranger. Its methods receive no descriptor.
type Conn struct {
	*net.UnixConn
	socket
}

// Keep keeps a new connection. Without a process the connection works, and its close is as careful as
// the daemon alone can be.
func Keep(c *net.UnixConn) *Conn {
	k := &Conn{UnixConn: c, socket: socket{id: number()}}
	_ = control(c, func(fd int) { k.account = accountOf(fd) })
	k.keep()
	return k
}

// Charge sets the account that waits when a descriptor of the connection blocks.
func (c *Conn) Charge(account string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.account = account
}

func (c *Conn) keep() { c.keepIn(opKeep, c, c) }

// Peek waits for data or a packet and copies its beginning to b, without taking it. rights reports
// that descriptors come with it.
func (c *Conn) Peek(b []byte) (n int, rights bool, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		for {
			var flags int
			// No room for control messages: the kernel reports rights and installs nothing.
			n, _, flags, _, inner = unix.Recvmsg(int(fd), b, nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			rights = flags&unix.MSG_CTRUNC != 0
			if !errors.Is(inner, unix.EINTR) {
				return !errors.Is(inner, unix.EAGAIN)
			}
		}
	})
	if err == nil {
		err = inner
	}
	if err != nil {
		return 0, false, err
	}
	return n, rights, nil
}

// Read takes data, and fails with ErrRights at descriptors.
func (c *Conn) Read(b []byte) (int, error) {
	n, rights, err := c.Peek(b)
	switch {
	case err != nil:
		return 0, err
	case rights:
		return 0, ErrRights
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	// As many bytes as seen: more may have descriptors.
	return c.UnixConn.Read(b[:n])
}

// Take receives the next packet, which has at most the wanted number of descriptors, and returns them.
// A *Refusal is the only error after which the connection may continue.
func (c *Conn) Take(most int, want Want) ([]int, error) {
	c.mu.Lock()
	k, account := c.keeper, c.account
	c.mu.Unlock()
	if k == nil {
		return nil, errEnded
	}
	return k.ask(request{Op: opTake, ID: c.id, Account: account, Most: most, Want: want}, nil)
}

// Copy duplicates a descriptor of another process, which the caller owns.
func Copy(pidfd, fd int, account string, want Want) (int, error) {
	k, err := current()
	if err != nil {
		return -1, err
	}
	fds, err := k.ask(request{Op: opCopy, FD: fd, Account: account, Want: want}, []int{pidfd})
	if err != nil {
		return -1, err
	}
	if len(fds) != 1 {
		return -1, fmt.Errorf("%d descriptors instead of one", len(fds))
	}
	return fds[0], nil
}

// Close ends the connection. The peer can still read what was sent before.
func (c *Conn) Close() error {
	end := func() error {
		// The process may be slow or stopped, and has a duplicate. The peer must see the end now.
		_ = control(c, func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
		return c.UnixConn.Close()
	}
	return c.closeWith(end, func() error { return closeAlone(c.UnixConn) })
}

// parked are connections that stay open, so that nothing closes their descriptors.
var parked struct {
	mu    sync.Mutex
	conns []io.Closer
}

// closeAlone closes a connection that no process keeps. One with descriptors or many packets stays open:
// the process could not be started, and a leak is better than a thread that blocks for ever.
func closeAlone(c interface {
	syscall.Conn
	io.Closer
},
) error {
	safe := false
	_ = control(c, func(fd int) {
		kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		safe = err == nil && drained(fd, kind == unix.SOCK_STREAM)
	})
	if safe {
		return c.Close()
	}
	parked.mu.Lock()
	defer parked.mu.Unlock()
	parked.conns = append(parked.conns, c)
	return nil
}
