// SPDX-License-Identifier: Apache-2.0

package hub

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
	"xsched/internal/driver/gate"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// Session is one life of one process at this daemon.
type Session struct {
	ID        model.SessionID
	PID       int
	ClientPID int
	UID       int
	Command   string
	Attached  bool
	// PriorityNote says that the wished priority was not granted.
	PriorityNote string

	hub     *Hub
	started time.Time
	conn    *net.UnixConn // nil when attached
	pidfd   int
	page    *wire.Page
	bell    int // doorbell eventfd; -1 when attached
	hw      driver.Session
	lease   *driver.Lease
	endOnce sync.Once
	cancel  context.CancelFunc
	ctx     context.Context
	kick    chan struct{} // the resolver's

	mu      sync.Mutex
	ended   bool
	onEnd   func(restored bool) // attached: tells the guardian
	freed   chan struct{}       // closed when everything was undone; never if it was not
	workers map[model.DeviceID]*driver.Worker

	// The loop's alone.
	account    *account // of its user
	hint       model.Hint
	granted    model.Priority // the highest that somebody who may has given it; below 0: as its user may
	policyWish string         // of a program with a private scheduler
	streams    int            // queues that are one stream each
	requests   requests
	hinted     int  // queues told of a hint since the last heartbeat
	stale      bool // and some were not
	held       bool
	queues     map[uint32]*queue
	caps       map[model.DeviceID]driver.Capability
	sent       map[model.DeviceID]model.Desired
	recoveries uint64
	adds       int                       // queues added since the last refill
	onGPU      map[model.DeviceID]int    // queues there
	hooked     map[model.DeviceID]bool   // it has announced a queue there itself
	bare       map[model.DeviceID]*queue // it has not, but uses the GPU; see bare.go
	changed    []model.DeviceID          // where the queues have changed and the worker was not told
}

// queue is the loop's knowledge of one slot in use.
type queue struct {
	id          model.QueueID
	device      model.DeviceID
	generation  uint64
	stream      bool             // one stream, not all of a context's
	offset      int32            // a stream's own priority, added to the process's
	said        model.HintChange // by the program, about this queue alone
	set         model.HintChange // and by others, newer than that
	granted     model.Priority   // with that; as the session's
	transitions uint64
	began       uint64 // when it last changed, by its client's word; see seenAt
	submitted   uint64
	busy        bool
	level       model.Level
	want        model.Desired
	gate        *gate.Target // nil when attached
	guess       guess        // then, and of bare ones: see guess.go

	preemptions uint64
	suspendedAt model.Time // 0: not suspended with work
	suspendedNS time.Duration
	stoppedBy   map[int]uint64 // preemptions by the PID in whose favour; see causes
	use         queueUse

	quiet    bool          // it does not ring; see quiet.go
	worked   time.Duration // then: how much of what the client added up is in use
	workedAt model.Time    // and when it was read
	owed     time.Duration // what was not taken over when quiet ended; below 0: taken too early
}

// workerList copies the workers, for callers outside the loop.
func (s *Session) workerList() map[model.DeviceID]*driver.Worker {
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

// worker returns the worker of a device, started if need be; nil after the end.
func (s *Session) worker(gpu model.DeviceID) *driver.Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.workers[gpu]; w != nil || s.ended {
		return w
	}
	t := pagedTarget{s.hw.Target(gpu), s.page.Retain()}
	w := driver.StartWorker(t, s.lease, s.hub.metrics, s.hub.log.With("pid", s.PID, "device", gpu.String()), clock.Now)
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
		s.hub.log.Debug("session ends", "session", s.ID, "pid", s.PID, "why", why)
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
				s.hub.log.Warn("process is not resumed yet: a device operation has not returned", "pid", s.PID)
				go func() {
					defer func() { _ = unix.Close(pidfd) }()
					waitAll(done, lateTime, func() bool { return !alive(pidfd) })
					s.close(workers, !alive(pidfd))
				}()
			}
			s.hub.reaper.remove(s)
			s.hub.forget(s)
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
			s.hub.log.Debug("probe failed", "pid", s.PID, "err", err)
			s.hub.metrics.Errors.Add(1)
			time.AfterFunc(wait, s.poke)
			wait = min(wait*2, time.Second)
		} else {
			wait = 20 * time.Millisecond
		}
		_ = s.hub.post(s.ctx, func(l *loop) { l.setCaps(s, caps) })
		for _, w := range s.workerList() {
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
