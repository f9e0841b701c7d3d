// SPDX-License-Identifier: Apache-2.0

package quarantine

import (
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listener is a socket that strangers connect to. It accepts connections that are kept, and the
// process keeps those that are not accepted yet.
//
// The Go runtime does not watch it: each new connection would wake a thread, also while Accept pauses
// because of a flood. That cost more than the flood itself.
type Listener struct {
	socket
	fd     int
	addr   net.Addr
	stream bool // its connections are streams, not packets

	mu    sync.Mutex
	users int  // threads that use the descriptor
	ended bool // no further one may
	free  chan struct{}
}

// Listen takes a listener over, and keeps it. One that is kept already stays as it is.
func Listen(inner net.Listener) (*Listener, error) {
	if kept, ok := inner.(*Listener); ok {
		return kept, nil
	}
	l, ok := inner.(*net.UnixListener)
	if !ok {
		return nil, fmt.Errorf("listen: %T is not a unix socket", inner)
	}
	k := &Listener{socket: socket{id: number()}, fd: -1, addr: l.Addr(), stream: l.Addr().Network() == "unix", free: make(chan struct{})}
	k.account = fmt.Sprintf("listener %d", k.id)
	var failed error
	err := control(l, func(fd int) { k.fd, failed = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) })
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l.SetUnlinkOnClose(false) // the path is the caller's
	_ = l.Close()
	k.keep()
	return k, nil
}

func (l *Listener) keep() { l.keepIn(opListen, l, l) }

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.addr }

// use begins and ends a use of the descriptor.
func (l *Listener) use() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return net.ErrClosed
	}
	l.users++
	return nil
}

func (l *Listener) unused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.ended && l.users == 0 {
		close(l.free)
	}
}

// Close refuses connections from now on, also those that are not accepted yet.
func (l *Listener) Close() error { return l.closeWith(l.end, l.end) }

// Refuse refuses connections from now on, in all processes that have the socket open.
func (l *Listener) Refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	}
}

// endTime limits how long Close waits for a thread that accepts. It wakes up at once.
const endTime = time.Second

// end closes the descriptor: before the process closes its own, so that this close can't block.
func (l *Listener) end() error {
	l.mu.Lock()
	l.ended = true
	busy := l.users > 0
	_ = unix.Shutdown(l.fd, unix.SHUT_RDWR) // wakes the threads that wait
	l.mu.Unlock()
	if busy {
		select {
		case <-l.free:
		case <-time.After(endTime):
			return fmt.Errorf("close listener: a thread has used it for %v", endTime)
		}
	}
	return unix.Close(l.fd)
}

// pollTime is the longest wait for a connection. A shorter one would wake up for nothing.
const pollTime = time.Minute

// await waits for a connection, or for the end. It occupies a thread.
func (l *Listener) await() error {
	if err := l.use(); err != nil {
		return err
	}
	defer l.unused()
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}, int(pollTime.Milliseconds()))
	return nil
}

// SyscallConn implements syscall.Conn.
func (l *Listener) SyscallConn() (syscall.RawConn, error) { return rawListener{l}, nil }

// rawListener gives access to the descriptor. The runtime does not watch it, so there is nothing to read.
type rawListener struct{ *Listener }

func (l rawListener) Control(f func(fd uintptr)) error {
	if err := l.use(); err != nil {
		return err
	}
	defer l.unused()
	f(uintptr(l.fd))
	return nil
}

func (rawListener) Read(func(fd uintptr) bool) error  { return syscall.EINVAL }
func (rawListener) Write(func(fd uintptr) bool) error { return syscall.EINVAL }
