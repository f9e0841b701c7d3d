// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/quarantine"
	"xsched/internal/wire"
)

// Session is the connection of one process to this daemon, from HELLO or attachment to its end.
type Session struct {
	loop.Identity

	server  *Server
	client  *loop.Client
	conn    *quarantine.Conn // nil if attached
	pidfd   int
	page    *wire.Page
	hw      driver.Session
	leases  *driver.Leases
	version uint32 // of the wire contract
	terms   uint64 // number of the configuration that its terms follow from
	endOnce sync.Once
	cancel  context.CancelFunc
	ctx     context.Context
	probe   chan struct{} // wakes probeLoop

	closed  chan struct{} // closed once the hardware is released and the loop has forgotten the client
	freed   driver.Freed  // then: what was verified of an attached process
	freeErr error         // then: why the process may not be free; nil: it is

	mu      sync.Mutex
	ended   bool
	onEnd   func(restored bool) // attached: notifies the guardian
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

// pagedTarget keeps the page mapped while a worker may write the lease.
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
	w := driver.StartWorker(t, s.leases.Of(gpu), s.server.metrics, s.server.log.With("pid", s.PID, "device", gpu.String()), clock.Now)
	w.OnOff(func() { _ = s.server.loop.Turned(s.ctx, s.client, gpu, w) })
	s.workers[gpu] = w
	return w
}

// A process that outlives its session is resumed within restoreTime, well below 100 ms. Its files
// stay open for lateTime, because an operation in flight may still suspend it and must be undone.
const (
	restoreTime = 50 * time.Millisecond
	lateTime    = 6 * time.Second
)

// end ends a session. Any goroutine may call it; the first call counts. The files of a dead process
// are closed at once, independent of the loop and the device. A process that continues (it left, or
// it called exec) is resumed first.
func (s *Session) end(dead bool, why string) {
	s.endOnce.Do(func() {
		s.server.log.Debug("session ended", "session", s.ID, "pid", s.PID, "reason", why)
		s.mu.Lock()
		s.ended = true
		workers := s.workers
		s.mu.Unlock()
		if s.server.cfg.Ended != nil {
			s.server.cfg.Ended(s.Identity, why)
		}
		var done []<-chan struct{}
		for _, w := range workers {
			done = append(done, w.Stop(!dead))
		}
		if s.conn != nil {
			_ = s.conn.Close()
		}
		s.hw.Disconnect()
		go func() {
			defer s.server.parts.release.Begin()()
			work := s.server.cfg.Budget.Work(s.User)
			if dead {
				s.hw.Close() // not in the caller: the driver takes as long as it likes
			} else {
				s.server.left(s.PID)
			}
			work()
			over := dead || waitAll(done, restoreTime, nil)
			defer s.server.cfg.Budget.Work(s.User)()
			s.cancel()
			pidfd := -1
			if !over && !s.restoredByClose() {
				pidfd, _ = unix.FcntlInt(uintptr(s.pidfd), unix.F_DUPFD_CLOEXEC, 3)
			}
			removed := make(chan struct{})
			if pidfd < 0 {
				s.close(workers, dead, s.pidfd)
				defer close(s.closed)
			} else {
				s.server.log.Warn("process is not resumed yet: a device operation has not returned", "pid", s.PID)
				go func() {
					defer s.server.parts.release.Begin()()
					defer func() { _ = unix.Close(pidfd) }()
					waitAll(done, lateTime, func() bool { return !identity.Alive(pidfd) })
					s.close(workers, !identity.Alive(pidfd), pidfd)
					<-removed
					close(s.closed)
				}()
			}
			s.server.reaper.remove(s)
			s.server.remove(s)
			close(removed)
		}()
	})
}

// close releases the hardware of the process and reports whether the process is free. The workers
// have ended, or have exceeded their time limit.
func (s *Session) close(workers map[model.DeviceID]*driver.Worker, dead bool, pidfd int) {
	s.freeErr = s.free(workers, dead, pidfd)
	restored := s.freeErr == nil
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
	if s.restoredByClose() {
		s.freeErr = nil
	}
}

// freeTime bounds the last verification of an attached process.
const freeTime = time.Second

// free checks that nothing is left of what the session did. For an attached process it does not rely
// on this daemon's records.
func (s *Session) free(workers map[model.DeviceID]*driver.Worker, dead bool, pidfd int) error {
	if dead {
		return nil
	}
	for _, w := range workers {
		if !w.Restored() {
			return fmt.Errorf("the device has not answered: %w", ErrNotFreed)
		}
	}
	a, ok := s.hw.(driver.Attached)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), freeTime)
	defer cancel()
	done, err := a.Free(ctx)
	s.freed = done
	if err != nil && identity.Alive(pidfd) {
		return fmt.Errorf("%w: %w", ErrNotFreed, err)
	}
	return nil
}

// restoredByClose reports whether closing the hardware always resumes the process.
func (s *Session) restoredByClose() bool {
	a, ok := s.hw.(driver.Attached)
	return ok && a.RestoredByClose()
}

// waitAll waits until all channels are closed. It returns false after the time limit, or if stop
// returns true.
func waitAll(done []<-chan struct{}, limit time.Duration, stop func() bool) bool {
	timer, tick := time.NewTimer(limit), time.NewTicker(10*time.Millisecond)
	defer timer.Stop()
	defer tick.Stop()
	for _, d := range done {
		for waiting := true; waiting; {
			select {
			case <-d:
				waiting = false
			case <-timer.C:
				return false
			case <-tick.C:
				if stop != nil && stop() {
					return false
				}
			}
		}
	}
	return true
}

// atEnd registers f for the end of the session. It returns false if the session has ended already.
func (s *Session) atEnd(f func(restored bool)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.onEnd = f
	return true
}

// Ended reports whether the session has ended or is about to.
func (s *Session) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Refresh makes the session probe its drivers again, because the hardware has changed.
func (s *Session) Refresh() { s.requestProbe() }

// End ends the session of a process that continues.
func (s *Session) End(why string) { s.end(false, why) }

// probeLoop probes the capabilities of the process whenever it has announced new objects. It has its
// own goroutine, because a device may not answer.
func (s *Session) probeLoop() {
	wait := 20 * time.Millisecond
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.probe:
		}
		probed := s.server.parts.probes.Begin()
		work := s.server.cfg.Budget.Work(s.User)
		caps, err := s.hw.Resolve(s.ctx)
		work()
		probed()
		if s.ctx.Err() != nil {
			return
		}
		if err != nil {
			s.server.log.Debug("probe failed", "pid", s.PID, "err", err)
			s.server.metrics.Errors.Add(1)
			time.AfterFunc(wait, s.requestProbe)
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

func (s *Session) requestProbe() {
	select {
	case s.probe <- struct{}{}:
	default:
	}
}
