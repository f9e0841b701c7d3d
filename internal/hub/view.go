// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// ErrUnknownPID is a process that has no session.
var ErrUnknownPID = errors.New("no such client")

// QueueView is a queue for people to look at.
type QueueView struct {
	Index       uint32
	Generation  uint64
	Stream      bool // one stream, not all of a context's
	Hint        model.Hint
	Device      model.DeviceID
	Busy        bool
	Level       model.Level
	Reason      string
	Route       string // how it is stopped at that level
	Want        model.Desired
	OwnSliceUS  int64
	Preemptions uint64
	Suspended   time.Duration
	Submitted   uint64
	Transitions uint64
	Ran         time.Duration  // it had work and was allowed to run
	StoppedBy   map[int]uint64 // preemptions by cause: a PID, ByHand or ByOthers
}

// SessionView is a session for people to look at.
type SessionView struct {
	ID             model.SessionID
	PID, ClientPID int
	UID            int
	Command        string
	Attached       bool
	Age            time.Duration
	Hint           model.Hint
	PriorityNote   string
	Held           bool
	Counters       wire.Counters
	// Marked requests, and how many of those came too fast to be read.
	Marked, MarksLost uint64
	Queues            []QueueView
	Caught            uint64 // hardware queues that appeared while the others were stopped
	Caps              map[model.DeviceID]driver.Capability
}

// Sessions returns all sessions, oldest first.
func (h *Hub) Sessions(ctx context.Context) ([]SessionView, error) {
	var out []SessionView
	err := h.call(ctx, func(l *loop) {
		now := l.now()
		l.sample(now)
		for _, s := range l.sessions {
			out = append(out, l.view(now, s))
		}
	})
	slices.SortFunc(out, func(a, b SessionView) int { return int(int64(a.ID) - int64(b.ID)) })
	return out, err
}

func (l *loop) view(now model.Time, s *Session) SessionView {
	v := SessionView{
		ID: s.ID, PID: s.PID, ClientPID: s.ClientPID, UID: s.UID, Command: s.Command, Attached: s.Attached,
		Age: time.Since(s.started), Hint: s.hint, PriorityNote: s.PriorityNote, Held: s.held,
		Counters: s.page.Counters(), Caps: maps.Clone(s.caps), Marked: s.requests.read, MarksLost: s.requests.lost,
		Caught: s.hw.Caught(),
	}
	for _, q := range s.queues {
		level, reason := l.inForce(s, q)
		qv := QueueView{
			Index: q.id.Index, Generation: q.generation, Stream: q.stream, Hint: l.hintOf(s, q), Device: q.device, Busy: q.busy, Level: level, Reason: reason, Want: q.want,
			Preemptions: q.preemptions, Suspended: q.suspendedNS, Submitted: q.submitted, Transitions: q.transitions,
		}
		qv.Route = l.route(s, q, level)
		if q.suspendedAt != 0 {
			qv.Suspended += now.Sub(q.suspendedAt)
		}
		qv.Ran, qv.StoppedBy = q.use.upTo(now), maps.Clone(q.stoppedBy)
		if !s.Attached {
			qv.Submitted = s.page.Queue(int(q.id.Index)).Submitted
		}
		qv.OwnSliceUS = s.hw.OwnSlice(q.device)
		v.Queues = append(v.Queues, qv)
	}
	slices.SortFunc(v.Queues, func(a, b QueueView) int { return int(a.Index) - int(b.Index) })
	return v
}

// inForce is the level of a queue with the reason when it is not the highest, or not the one
// asked for, as of now: the mode may force another than the hint says, and why hardware is
// not there may have changed.
func (l *loop) inForce(s *Session, q *queue) (model.Level, string) {
	want := s.hint.Level
	if cfg := l.engine.Config(); cfg.Mode == model.ModeLevel {
		want = cfg.ForceLevel
	}
	level, reason := l.abilities(s, q).Resolve(want)
	switch {
	case s.Attached && level == model.LevelBlock:
		reason = "it has no shim to hold its launches: level 1 does nothing to it"
	case q.guessed() && level == model.LevelBlock:
		reason = "its runtime is not hooked, so nothing holds its launches: level 1 does nothing to it"
	}
	return level, reason
}

// route is how a queue is stopped at a level.
func (l *loop) route(s *Session, q *queue, level model.Level) string {
	if level <= model.LevelBlock {
		return "gate"
	}
	return s.caps[q.device].Route
}

// HardwareQueues asks the hardware of a process; it may take as long as the device does.
func (h *Hub) HardwareQueues(ctx context.Context, pid int) ([]driver.HardwareQueue, error) {
	found, out := false, []driver.HardwareQueue(nil)
	for _, s := range h.all() {
		if s.PID != pid {
			continue
		}
		found = true
		more, err := s.hw.HardwareQueues(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	if !found {
		return nil, ErrUnknownPID
	}
	return out, nil
}

// edit runs f on every session of a process, on the loop.
func (h *Hub) edit(ctx context.Context, pid int, f func(l *loop, s *Session) error) error {
	found, failed := false, error(nil)
	err := h.call(ctx, func(l *loop) {
		for _, s := range l.sessions {
			if s.PID == pid {
				found = true
				failed = errors.Join(failed, f(l, s))
			}
		}
	})
	switch {
	case err != nil:
		return err
	case !found:
		return ErrUnknownPID
	}
	return failed
}

// SetHint gives a process a new hint. change sees the session and its
// capabilities first and may refuse. raises: the priorities are ones that the caller may
// give, whatever the user of the process may have; they are the highest from then on.
func (h *Hub) SetHint(ctx context.Context, pid int, raises bool, change func(v SessionView, hint *model.Hint) error) (model.Hint, error) {
	var hint model.Hint
	err := h.edit(ctx, pid, func(l *loop, s *Session) error {
		now := l.now()
		hint = s.hint
		if err := change(l.view(now, s), &hint); err != nil {
			return err
		}
		s.hint = hint
		if raises {
			s.granted = top(&hint)
			s.PriorityNote = ""
		}
		l.rehint(now, s)
		return nil
	})
	return hint, err
}

func top(h *model.Hint) model.Priority {
	return max(h.Priority, h.LaxPriority, h.CriticalPriority)
}

// ErrUnknownQueue is a queue that a process does not have.
var ErrUnknownQueue = errors.New("no such queue")

// SetQueueHint changes the hint of one queue, which is scheduled on its own from then on. check
// sees the hint as it would be and may refuse; raises is as for SetHint.
func (h *Hub) SetQueueHint(ctx context.Context, pid int, index uint32, raises bool, change model.HintChange, check func(*model.Hint) error) (model.Hint, error) {
	var hint model.Hint
	found := false
	err := h.edit(ctx, pid, func(l *loop, s *Session) error {
		now := l.now()
		q := s.queues[index]
		if q == nil {
			return nil
		}
		found = true
		hint = l.hintOf(s, q)
		change.Apply(&hint)
		if err := check(&hint); err != nil {
			return err
		}
		q.set.Merge(&change)
		if raises {
			q.granted = top(&hint)
		}
		hint = l.hintOf(s, q)
		l.engine.SetQueueHint(now, q.id, s.told(hint))
		l.relevel(s) // queues told apart can have less
		return nil
	})
	if err == nil && !found {
		err = ErrUnknownQueue
	}
	return hint, err
}

// SetHeld suspends or resumes a process by hand.
func (h *Hub) SetHeld(ctx context.Context, pid int, held bool) error {
	return h.edit(ctx, pid, func(l *loop, s *Session) error {
		s.held = held
		l.engine.SetHeld(l.now(), pid, held)
		l.dirty = true
		return nil
	})
}

// ErrNotFreed is a process that was let go while the device does not answer. It is set free
// as soon as that does.
var ErrNotFreed = errors.New("the device has not answered: the process is not free yet")

// detachTime is how long a device may take to set a process free before Detach says that it doesn't.
const detachTime = 2 * time.Second

// Detach ends the session of an attached process. Without an error the process is free.
func (h *Hub) Detach(ctx context.Context, pid int) error {
	var freed <-chan struct{}
	err := h.edit(ctx, pid, func(_ *loop, s *Session) error {
		if !s.Attached {
			return errors.New("the process has joined by itself")
		}
		freed = s.freed
		go s.end(false, "detached")
		return nil
	})
	if err != nil {
		return err
	}
	timer := time.NewTimer(detachTime)
	defer timer.Stop()
	select {
	case <-freed:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return ErrNotFreed
}

// Engine runs f with the engine, on the loop, and lets it decide afterwards.
func (h *Hub) Engine(ctx context.Context, f func(e *engine.Engine)) error {
	return h.call(ctx, func(l *loop) {
		l.sample(l.now())
		f(l.engine)
		l.dirty = true
	})
}

// Wedge blocks the loop: fault injection.
func (h *Hub) Wedge(ctx context.Context, d time.Duration) error {
	return h.post(ctx, func(*loop) { time.Sleep(d) })
}

// MayHave says why a user may not have a priority; empty: may.
func (h *Hub) MayHave(uid int, p model.Priority) string { return h.mayHave(uid, p) }

// Stats are the hub's own figures.
type Stats struct {
	Scheduling                     string
	Sessions, Queues               int
	SessionsTotal                  uint64
	Refused                        map[string]uint64
	Wakes, Rings, Decisions        uint64
	BusyToDecision, Decision, Late *driver.Histogram
	Waits                          *driver.Histogram
	Heartbeat                      model.Time // the last
	Targets                        []TargetStats
	// Engine is as of the last heartbeat.
	Engine engine.Stats
}

// TargetStats is one worker's account.
type TargetStats struct {
	PID    int
	Device model.DeviceID
	driver.WorkerStats
}

// Stats works also while the loop is blocked: it asks it nothing.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.sessions))
	st := Stats{Sessions: len(all), Refused: maps.Clone(h.refused)}
	h.mu.Unlock()
	l := h.loop
	if p := l.scheduling.Load(); p != nil {
		st.Scheduling = *p
	}
	st.SessionsTotal = h.total.Load()
	st.Queues = int(l.queueCount.Load())
	st.Wakes, st.Rings, st.Decisions = l.wakes.Load(), l.rings.Load(), l.decisions.Load()
	st.BusyToDecision, st.Decision, st.Late = &l.busyToDecision, &l.decision, &l.late
	st.Waits, st.Heartbeat = &l.waits, model.Time(l.beat.Load())
	if c := l.counts.Load(); c != nil {
		st.Engine = *c
	}
	for _, s := range all {
		for gpu, w := range s.workerList() {
			st.Targets = append(st.Targets, TargetStats{s.PID, gpu, w.Stats()})
		}
	}
	slices.SortFunc(st.Targets, func(a, b TargetStats) int { return a.PID - b.PID })
	return st
}
