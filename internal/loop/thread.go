// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// thread is what other goroutines need to reach the engine's thread: its requests and the descriptors
// that wake it.
type thread struct {
	uid                int // of the daemon
	epoll, wake, timer int
	mail               *mailbox
	quit               atomic.Bool
	done               chan struct{}
	refused            atomic.Uint64 // requests of users with too many

	fdMu   sync.RWMutex // keeps a late ring from writing to a reused descriptor
	closed bool
}

func newThread(uid int) (*thread, error) {
	t := &thread{uid: uid, epoll: -1, wake: -1, timer: -1, mail: newMailbox(), done: make(chan struct{})}
	var err error
	if t.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	if t.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		t.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	if err == nil {
		err = t.watch(t.wake, unix.EPOLLIN)
	}
	if err == nil {
		err = t.watch(t.timer, unix.EPOLLIN)
	}
	if err != nil {
		t.closeFDs()
	}
	return t, err
}

// raisePriority raises the scheduling priority of the calling thread as far as permitted, and
// returns the result. New threads and processes do not inherit it.
func raisePriority() string {
	const resetOnFork = 1 // SCHED_FLAG_RESET_ON_FORK
	fifo := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: resetOnFork, Priority: 1}
	err := unix.SchedSetAttr(0, &fifo, 0)
	if err == nil {
		return "SCHED_FIFO 1"
	}
	nice := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Flags: resetOnFork, Nice: -10}
	if unix.SchedSetAttr(0, &nice, 0) == nil {
		return "nice -10"
	}
	return fmt.Sprintf("normal (%v)", err)
}

func (t *thread) closeFDs() {
	t.fdMu.Lock()
	defer t.fdMu.Unlock()
	t.closed = true
	for _, fd := range []int{t.timer, t.wake, t.epoll} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

func (t *thread) watch(fd int, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: int32(fd)}
	return unix.EpollCtl(t.epoll, unix.EPOLL_CTL_ADD, fd, &e)
}

// Stop ends the loop. It waits for the current pass.
func (t *thread) Stop() {
	t.quit.Store(true)
	t.ring()
	<-t.done
	t.closeFDs()
}

// Done is closed when the loop has ended, by Stop or because it can't go on.
func (t *thread) Done() <-chan struct{} { return t.done }

func (t *thread) ring() {
	t.fdMu.RLock()
	defer t.fdMu.RUnlock()
	if t.closed {
		return
	}
	one := [8]byte{1}
	_, _ = unix.Write(t.wake, one[:])
}

// call runs f on the loop and waits for it. After an error f was not run and never will be, so the
// caller owns the variables that f writes.
func (t *thread) call(ctx context.Context, f func()) error {
	var taken atomic.Bool // by the loop, or by a caller that gives up
	done := make(chan struct{})
	err := t.post(ctx, func() {
		if taken.CompareAndSwap(false, true) {
			f()
			close(done)
		}
	})
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-t.done:
		err = ErrStopped
	case <-ctx.Done():
		err = ctx.Err()
	}
	if taken.CompareAndSwap(false, true) {
		return err
	}
	<-done // f runs, or has run
	return nil
}

// ErrStopped reports a request to a loop that has ended.
var ErrStopped = errors.New("the daemon is stopping")
