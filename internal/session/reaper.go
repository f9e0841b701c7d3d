// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/health"
	"xsched/internal/identity"
)

// reaper waits for the end of processes through their pidfds. It has its own goroutine: a busy engine
// or a slow client must not delay the release of a dead process's GPU memory.
type reaper struct {
	epoll int
	quit  int // eventfd
	done  chan struct{}
	part  *health.Part

	mu   sync.Mutex
	byFD map[int32]*Session
}

func newReaper(part *health.Part) (*reaper, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	quit, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(ep)
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	r := &reaper{epoll: ep, quit: quit, done: make(chan struct{}), part: part, byFD: map[int32]*Session{}}
	if err := r.watch(quit, unix.EPOLLIN); err != nil {
		_ = unix.Close(ep)
		_ = unix.Close(quit)
		return nil, err
	}
	go r.run()
	return r, nil
}

func (r *reaper) watch(fd int, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("watch descriptor: %w", err)
	}
	return nil
}

// add watches the session's pidfd and takes ownership of it, also on failure.
func (r *reaper) add(s *Session) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byFD[int32(s.pidfd)] = s
	return r.watch(s.pidfd, unix.EPOLLIN|unix.EPOLLONESHOT)
}

func (r *reaper) remove(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byFD[int32(s.pidfd)] == s {
		delete(r.byFD, int32(s.pidfd))
		_ = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, s.pidfd, nil)
		_ = unix.Close(s.pidfd)
	}
}

func (r *reaper) run() {
	defer close(r.done)
	events := make([]unix.EpollEvent, 64)
	for {
		r.part.End()
		n, err := unix.EpollWait(r.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		r.part.Begin()
		if err != nil {
			return // the part is late from now on
		}
		for _, e := range events[:n] {
			if int(e.Fd) == r.quit {
				r.part.End()
				return
			}
			r.mu.Lock()
			s := r.byFD[e.Fd]
			// The descriptor may belong to another process by now.
			gone := s != nil && !identity.Alive(s.pidfd)
			r.mu.Unlock()
			if gone {
				s.end(true, "process ended")
			}
		}
	}
}

func (r *reaper) stop() {
	one := [8]byte{1}
	_, _ = unix.Write(r.quit, one[:])
	select {
	case <-r.done:
	case <-time.After(stopTime):
		return // it hangs in the end of a session and needs its descriptors
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = unix.Close(r.quit)
	_ = unix.Close(r.epoll)
	r.epoll = -1 // sessions may still end, when the descriptor is already reused
}
