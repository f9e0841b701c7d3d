// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"maps"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// Session is the connection of one process to this daemon, from HELLO or attachment to its end.
type Session struct {
	loop.Identity

	server  *Server
	client  *loop.Client
	conn    *net.UnixConn // nil if attached
	pidfd   int
	page    *wire.Page
	hw      driver.Session
	lease   *driver.Lease
	endOnce sync.Once
	cancel  context.CancelFunc
	ctx     context.Context
	kick    chan struct{} // wakes resolve

	mu      sync.Mutex
	ended   bool
	onEnd   func(restored bool) // attached: notifies the guardian
	freed   chan struct{}       // closed once everything is undone; never if that fails
	workers map[model.DeviceID]*driver.Worker
}

var _ loop.Session = (*Session)(nil)

// Hardware returns the drivers' side of the session.
func (s *Session) Hardware() driver.Session { return s.hw }

// Workers returns a copy of the workers started so far.
func (s *Session) Workers() map[model.DeviceID]*driver.Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[model.DeviceID]*driver.Worker, len(s.workers))
	maps.Copy(out, s.workers)
	return out
}

// pagedTarget keeps the page mapped as long as a worker may write its lease.
type pagedTarget struct {
	driver.Target
	page *wire.Page
}

func (t pagedTarget) Close() error {
	err := t.Target.Close()
	t.page.Release()
	return err
}

// Worker returns the worker of a device and starts it on first use; nil after the end.
func (s *Session) Worker(gpu model.DeviceID) *driver.Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.workers[gpu]; w != nil || s.ended {
		return w
	}
	t := pagedTarget{s.hw.Target(gpu), s.page.Retain()}
	w := driver.StartWorker(t, s.lease, s.server.metrics, s.server.log.With("pid", s.PID, "device", gpu.String()), clock.Now)
	s.workers[gpu] = w
	return w
}

// A process that outlives its session is resumed within restoreTime, well below 100 ms. Its files
// stay open for lateTime: an operation in flight may still suspend it, and must be undone.
const (
	restoreTime = 50 * time.Millisecond
	lateTime    = 6 * time.Second
)

// end ends a session, from whichever goroutine sees the end first. Files of a
// dead process are closed at once, whatever the loop or the device does. A
// process that lives on (it left, or it called exec) is resumed first.
func (s *Session) end(dead bool, why string) {
	s.endOnce.Do(func() {
		s.server.log.Debug("session ends", "session", s.ID, "pid", s.PID, "why", why)
		s.mu.Lock()
		s.ended = true
		workers := s.workers
		s.mu.Unlock()
		var done []<-chan struct{}
		for _, w := range workers {
			done = append(done, w.Stop(!dead))
		}
		if dead {
			s.hw.Close()
		}
		if s.conn != nil {
			_ = s.conn.Close()
		}
		s.hw.Disconnect()
		go func() {
			over := dead || waitAll(done, restoreTime, nil)
			s.cancel()
			pidfd := -1
			if !over && !s.restoredByClose() {
				pidfd, _ = unix.FcntlInt(uintptr(s.pidfd), unix.F_DUPFD_CLOEXEC, 3)
			}
			if pidfd < 0 {
				s.close(workers, dead)
			} else {
				s.server.log.Warn("process is not resumed yet: a device operation has not returned", "pid", s.PID)
				go func() {
					defer func() { _ = unix.Close(pidfd) }()
					waitAll(done, lateTime, func() bool { return !alive(pidfd) })
					s.close(workers, !alive(pidfd))
				}()
			}
			s.server.reaper.remove(s)
			s.server.forget(s)
		}()
	})
}

// close lets go of the process and says whether it is free. The workers have ended, or
// nobody waits for them any more.
func (s *Session) close(workers map[model.DeviceID]*driver.Worker, dead bool) {
	restored := true
	for _, w := range workers {
		restored = restored && w.Restored()
	}
	s.hw.Close()
	for _, w := range workers {
		w.Abandon()
	}
	s.mu.Lock()
	onEnd := s.onEnd
	s.mu.Unlock()
	if onEnd != nil {
		onEnd(restored)
	}
	if restored || dead || s.restoredByClose() {
		close(s.freed)
	}
}

// restoredByClose: closing its hardware resumes the process, whatever was done to it.
func (s *Session) restoredByClose() bool {
	a, ok := s.hw.(driver.Attached)
	return ok && a.RestoredByClose()
}

// waitAll waits until all are closed; false: not in time, or stop said so.
func waitAll(done []<-chan struct{}, limit time.Duration, stop func() bool) bool {
	timer, look := time.NewTimer(limit), time.NewTicker(10*time.Millisecond)
	defer timer.Stop()
	defer look.Stop()
	for _, d := range done {
		for waiting := true; waiting; {
			select {
			case <-d:
				waiting = false
			case <-timer.C:
				return false
			case <-look.C:
				if stop != nil && stop() {
					return false
				}
			}
		}
	}
	return true
}

// atEnd has f called at the end; false: it has ended already.
func (s *Session) atEnd(f func(restored bool)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.onEnd = f
	return true
}

// Ended says that the session has ended, or is about to.
func (s *Session) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Refresh has the hardware asked again what it can do: more of it was found.
func (s *Session) Refresh() { s.poke() }

// End ends the session of a process that lives on.
func (s *Session) End(why string) { s.end(false, why) }

// resolve probes the process's objects whenever some have appeared, on its own
// goroutine because a device may not answer.
func (s *Session) resolve() {
	wait := 20 * time.Millisecond
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.kick:
		}
		caps, err := s.hw.Resolve(s.ctx)
		if s.ctx.Err() != nil {
			return
		}
		if err != nil {
			s.server.log.Debug("probe failed", "pid", s.PID, "err", err)
			s.server.metrics.Errors.Add(1)
			time.AfterFunc(wait, s.poke)
			wait = min(wait*2, time.Second)
		} else {
			wait = 20 * time.Millisecond
		}
		_ = s.server.loop.SetCapabilities(s.ctx, s.client, caps)
		for _, w := range s.Workers() {
			w.Redo()
		}
	}
}

func (s *Session) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// alive says whether the process of a pidfd still is.
func alive(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		// A signal to this thread, such as the runtime's own, says nothing about the process.
		if n, err := unix.Poll(p, 0); !errors.Is(err, unix.EINTR) {
			return err == nil && n == 0
		}
	}
}
