// SPDX-License-Identifier: Apache-2.0

package quarantine

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/budget"
)

// peerOf returns the uid and the PID that the peer of a socket had when it connected; -1: unknown.
func peerOf(fd int) (uid, pid int) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, -1
	}
	return int(cred.Uid), int(cred.Pid)
}

func accountOf(fd int) string {
	uid, _ := peerOf(fd)
	return fmt.Sprintf("uid %d", uid)
}

// AcceptKept returns the next connection for which enter returns true, given the uid and the PID of its
// peer. Those that it refuses are closed, at a tenth of the cost of one that is kept: whoever opens
// connections without end must neither delay others, whose connections come later, nor use a CPU.
// refusal is sent to them; empty: nothing.
func (l *Listener) AcceptKept(enter func(uid, pid int) bool, refusal []byte) (*Conn, error) {
	for {
		began := time.Now()
		fd, refused, err := l.acceptNow(enter, refusal)
		switch {
		case err != nil:
			return nil, err
		case fd >= 0:
			c, err := connOf(fd)
			if err != nil {
				return nil, err
			}
			return Keep(c), nil
		case refused > 0:
			time.Sleep(budget.Pause(time.Since(began)))
			continue
		}
		if err := l.await(); err != nil {
			return nil, err
		}
	}
}

// acceptBatch is how many connections are refused before a pause, in which the listener's own close can
// take effect.
const acceptBatch = 64

// acceptNow returns a connection that does not have to be waited for; -1: there is none.
func (l *Listener) acceptNow(enter func(uid, pid int) bool, refusal []byte) (fd, refused int, err error) {
	fd, failed := -1, error(nil)
	err = control(l, func(listener int) {
		for range acceptBatch {
			if fd, _, failed = unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK); failed != nil || enter(peerOf(fd)) {
				return
			}
			if l.refuse(fd, refusal) {
				_ = unix.Close(fd)
			} else if c, err := connOf(fd); err == nil {
				_ = Keep(c).Close()
			}
			fd = -1
			refused++
		}
	})
	switch {
	case err != nil:
		return -1, refused, err
	case errors.Is(failed, unix.EAGAIN), errors.Is(failed, unix.EINTR), errors.Is(failed, unix.ECONNABORTED):
		return -1, refused, nil
	case errors.Is(failed, unix.EINVAL): // somebody has shut it down
		return -1, refused, net.ErrClosed
	case failed != nil:
		return -1, refused, fmt.Errorf("accept: %w", failed)
	}
	return fd, refused, nil
}

// control runs f with the descriptor of a socket.
func control(c syscall.Conn, f func(fd int)) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f(int(fd)) })
}

// connOf takes ownership of a descriptor, also on failure: without room for the second descriptor that
// a connection needs for a moment.
func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "client")
	c, err := net.FileConn(f)
	if err != nil {
		o := &orphan{File: f, socket: socket{id: number(), account: accountOf(fd)}}
		o.keep()
		_ = o.Close()
		return nil, fmt.Errorf("accept: %w", err)
	}
	_ = f.Close() // never the last one: the connection has a duplicate
	return c.(*net.UnixConn), nil
}

// orphan is a stranger's socket that became no connection. The process closes it: what lies in it is
// the stranger's, and closing that may block.
type orphan struct {
	*os.File
	socket
}

func (o *orphan) keep() { o.keepIn(opKeep, o, o.File) }

// Close ends the socket.
func (o *orphan) Close() error {
	return o.closeWith(o.File.Close, func() error { return closeAlone(o.File) })
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	return l.AcceptKept(func(int, int) bool { return true }, nil)
}

// maxUnread is how many packets a new connection may have before another process closes it. A program
// has sent HELLO at most.
const maxUnread = 4

// refuse ends a connection, and reports whether nothing is left in it.
func (l *Listener) refuse(fd int, refusal []byte) bool {
	if len(refusal) > 0 {
		_ = unix.Sendto(fd, refusal, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}
	return drained(fd, l.stream)
}

// drained ends a connection and takes what it holds: at most maxUnread packets, and no descriptors. It
// reports whether nothing is left, so that its close can't block.
func drained(fd int, stream bool) bool {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR) // nothing arrives any more
	var b [1]byte                         // the kernel discards the rest of a packet
	if stream {
		n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
		_, _, _, _, urgent := unix.Recvmsg(fd, b[:], nil, unix.MSG_OOB|unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err == nil && n == 0 && urgent != nil
	}
	// Each packet then has a control message, and the end has none. There is no room for descriptors:
	// the kernel reports and does not install them.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for range maxUnread {
		_, oobn, flags, _, err := unix.Recvmsg(fd, b[:], oob, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != nil || flags&unix.MSG_CTRUNC != 0 {
			return false
		}
		if oobn == 0 {
			return true
		}
		_, _, _, _, _ = unix.Recvmsg(fd, b[:], nil, unix.MSG_DONTWAIT)
	}
	return false
}
