// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/gate"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file is the loop's: sessions and their queues, as the pages show them.

// join starts listening to a session.
func (l *loop) join(s *Session) error {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended {
		return errEnd
	}
	now := l.now()
	s.page.Heartbeat(now)
	if s.bell >= 0 {
		// Edge-triggered: every ring wakes the loop once, and nobody has to read it.
		if err := l.watch(s.bell, unix.EPOLLIN|unix.EPOLLET); err != nil {
			return fmt.Errorf("watch doorbell: %w", err)
		}
		l.bells[int32(s.bell)] = s
	}
	l.sessions[s.ID] = s
	l.open(s)
	if s.policyWish != "" {
		l.wishPolicy(s, s.policyWish)
	}
	return nil
}

// programOf returns the command line of a session's process, for the recording.
func (l *loop) programOf(id model.SessionID) string {
	if s := l.sessions[id]; s != nil {
		return s.Command
	}
	return ""
}

// remove forgets a session.
func (l *loop) remove(s *Session) {
	now := l.now()
	for _, q := range s.queues {
		l.removeQueue(now, s, q)
	}
	if s.bell >= 0 {
		delete(l.bells, int32(s.bell))
		_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, s.bell, nil)
		_ = unix.Close(s.bell)
		s.bell = -1
	}
	delete(l.sessions, s.ID)
	l.closeAccount(s)
	s.page.Release()
	l.dirty = true
}

// scan reads a session's page after its doorbell rang, every value once.
func (l *loop) scan(now model.Time, s *Session) {
	l.readMarks(now, s)
	n := s.page.QueueCount()
	for i := range n {
		v := s.page.Queue(i)
		q := s.queues[uint32(i)]
		if q != nil && (v.Generation != q.generation || !v.InUse()) {
			l.removeQueue(now, s, q)
			q = nil
			v = s.page.Queue(i) // it may have been quiet till now
		}
		if q == nil {
			if !v.InUse() {
				continue
			}
			if q = l.addQueue(now, s, uint32(i), &v); q == nil {
				continue
			}
		}
		l.follow(now, s, q, &v)
	}
	l.settle(s)
}

// follow takes over what a page shows of a queue; the caller settles.
func (l *loop) follow(now model.Time, s *Session, q *queue, v *wire.QueueView) {
	q.submitted = v.Submitted
	if q.quiet {
		l.gpus.worked(now, q, v.Worked(now))
	}
	if v.Transitions == q.transitions {
		return
	}
	fed := time.Duration(0)
	at := seenAt(now, v)
	if v.Transitions == q.transitions+1 && at != seenLate { // else its busy time is not the one that we know of
		fed = v.Fed(q.began)
	}
	q.transitions, q.began = v.Transitions, at
	switch {
	case v.Busy() != q.busy:
		l.setBusy(now, s, q, v.Busy(), fed)
		if q.busy && !q.quiet {
			l.risen = append(l.risen, model.Time(v.ChangedNS&(1<<63-1)))
		}
	case q.quiet:
		// It was otherwise in between: its work, or its rest, is not as old as the engine thinks.
		l.engine.SetBusy(now, q.id, !q.busy)
		l.engine.SetBusy(now, q.id, q.busy)
		l.dirty = true
	}
}

// touch notes that a worker has to be told again: once, however many queues change.
func (s *Session) touch(gpu model.DeviceID) {
	if !slices.Contains(s.changed, gpu) {
		s.changed = append(s.changed, gpu)
	}
}

// settle tells the workers what has changed.
func (l *loop) settle(s *Session) {
	for _, gpu := range s.changed {
		l.retarget(s, gpu)
	}
	s.changed = s.changed[:0]
}

// setBusy notes that a queue has work or none, fed as for engine.SetIdle; the caller settles.
func (l *loop) setBusy(now model.Time, s *Session, q *queue, busy bool, fed time.Duration) {
	q.busy = busy
	l.note(now, q)
	if !busy && q.suspendedAt != 0 {
		q.suspendedNS += now.Sub(q.suspendedAt)
		q.suspendedAt = 0
	}
	if busy {
		l.engine.SetBusy(now, q.id, true)
	} else {
		l.engine.SetIdle(now, q.id, fed)
	}
	l.dirty = true
	if len(s.queues) > 1 {
		s.touch(q.device)
	}
}

// addQueue enters a new queue, within bounds: a client that floods its page
// gets its queues by and by, or not at all.
func (l *loop) addQueue(now model.Time, s *Session, index uint32, v *wire.QueueView) *queue {
	if s.adds++; s.adds > addsPerTick || l.queueCount.Load() >= maxQueues {
		return nil
	}
	if s.onGPU[v.Device] == 0 && len(s.onGPU) >= maxGPUs {
		return nil
	}
	l.hook(s, v.Device)
	q := &queue{
		id: model.QueueID{Session: s.ID, Index: index}, device: v.Device, generation: v.Generation,
		stream: v.Stream, offset: v.Priority, transitions: v.Transitions, began: seenAt(now, v), busy: v.Busy(), gate: gate.New(s.page, int(index), l.hub.metrics),
	}
	l.enter(now, s, q)
	return q
}

// enter makes a queue known to the engine; the caller settles.
func (l *loop) enter(now model.Time, s *Session, q *queue) {
	s.queues[q.id.Index] = q
	s.onGPU[q.device]++
	l.queueCount.Add(1)
	regroup := s.countStream(q, 1)
	c := l.abilities(s, q)
	q.level, _ = c.Resolve(s.hint.Level)
	q.want = model.Desired{Queue: q.id}
	q.guess = guess{idle: !q.busy, counted: now, since: now}
	l.gpus.enter(now, q)
	if q.gate != nil {
		_ = q.gate.Apply(context.Background(), q.want)
	}
	l.engine.AddQueue(now, model.Queue{
		ID: q.id, PID: s.PID, Device: q.device, Hint: s.told(l.hintOf(s, q)), Level: q.level, Slices: c.Slices, Busy: q.busy, Guessed: q.guessed(),
	})
	if s.held {
		l.engine.SetHeld(now, s.PID, true)
	}
	switch {
	case regroup:
		l.rehint(now, s)
	case s.onGPU[q.device] == 2 && s.apart(q.device):
		l.relevel(s) // the first has the hardware's queues no longer to itself
	}
	l.dirty = true
	s.touch(q.device)
}

// removeQueue forgets a queue; the caller settles.
func (l *loop) removeQueue(now model.Time, s *Session, q *queue) {
	apart := s.onGPU[q.device] == 2 && s.apart(q.device)
	l.loud(now, s, q)
	l.engine.RemoveQueue(now, q.id)
	l.gpus.leave(now, q)
	if q.gate != nil {
		_ = q.gate.Close()
	}
	delete(s.queues, q.id.Index)
	l.forgetBare(s, q)
	if s.onGPU[q.device]--; s.onGPU[q.device] == 0 {
		delete(s.onGPU, q.device)
	}
	l.queueCount.Add(-1)
	switch {
	case s.countStream(q, -1):
		l.rehint(now, s)
	case apart:
		l.relevel(s)
	}
	l.dirty = true
	s.touch(q.device)
}

// capability is what can be done to a session on a device, with the reason when
// that is not everything.
func (l *loop) capability(s *Session, gpu model.DeviceID) driver.Capability {
	if c, ok := s.caps[gpu]; ok {
		return c
	}
	why, _ := s.hw.Why()
	return driver.Capability{MaxLevel: model.LevelBlock, Reason: why}
}

// setCaps takes over what probing has shown.
func (l *loop) setCaps(s *Session, caps map[model.DeviceID]driver.Capability) {
	if l.sessions[s.ID] == nil || maps.Equal(caps, s.caps) {
		return
	}
	s.caps = caps
	if s.Attached {
		l.enterAttached(s)
	} else {
		l.enterBare(s)
	}
	l.relevel(s)
	for gpu, c := range caps {
		if c.MaxLevel > model.LevelBlock {
			l.retarget(s, gpu)
		}
	}
}

// enterAttached gives an attached process one queue a GPU. Nobody tells when
// it has work, so it counts as having some until it showed none for a while.
func (l *loop) enterAttached(s *Session) {
	for gpu, c := range s.caps {
		if s.onGPU[gpu] == 0 && c.MaxLevel > model.LevelBlock && len(s.queues) < maxGPUs {
			id := model.QueueID{Session: s.ID, Index: uint32(len(s.queues))}
			l.enter(l.now(), s, &queue{id: id, device: gpu, generation: 1, transitions: 1, busy: true})
		}
	}
	l.settle(s)
}

// relevel resolves the level of every queue of a session again.
func (l *loop) relevel(s *Session) {
	now := l.now()
	for _, q := range s.queues {
		c := l.abilities(s, q)
		q.level, _ = c.Resolve(s.hint.Level)
		l.engine.SetLevel(now, q.id, q.level, c.Slices)
	}
	l.dirty = true
}

// publish carries a decision out: the gate here, the hardware through its worker, which
// publishAll tells.
func (l *loop) publish(now model.Time, d model.Desired) {
	s := l.sessions[d.Queue.Session]
	if s == nil {
		return
	}
	q := s.queues[d.Queue.Index]
	if q == nil {
		return
	}
	if len(s.changed) == 0 {
		l.unsettled = append(l.unsettled, s)
	}
	s.touch(q.device)
	was := q.want.Suspend != 0
	q.want = d
	if stop := d.Suspend != 0; q.guessed() && stop != was {
		l.guesses = append(l.guesses, guessChange{s, q, stop})
	} else {
		l.countStop(now, s, q, was)
	}
	if q.gate != nil {
		_ = q.gate.Apply(context.Background(), l.gated(s, q))
	}
}

// countStop keeps the account of a queue that was suspended or resumed.
func (l *loop) countStop(now model.Time, s *Session, q *queue, was bool) {
	l.note(now, q)
	switch stop := q.want.Suspend != 0; {
	case stop && !was && q.busy:
		q.preemptions++
		l.blame(s, q)
		q.suspendedAt = now
	case !stop && q.suspendedAt != 0:
		l.waits.Record(now.Sub(q.suspendedAt))
		q.suspendedNS += now.Sub(q.suspendedAt)
		q.suspendedAt = 0
	}
}

// gated is what the gate has to do for a queue: also what hardware that isn't
// there should have done, when a mode forces a level on everybody.
func (l *loop) gated(s *Session, q *queue) model.Desired {
	d := q.want
	if d.Suspend > model.LevelBlock && l.abilities(s, q).MaxLevel < d.Suspend {
		d.Suspend = model.LevelBlock
	}
	return d
}

// retarget tells the worker of a process on a device what its queues there add
// up to: the hardware's queues are the process's, so it stops only when all
// that have work shall stop.
func (l *loop) retarget(s *Session, gpu model.DeviceID) {
	if c, ok := s.caps[gpu]; !ok || c.MaxLevel <= model.LevelBlock {
		if _, ok := s.sent[gpu]; !ok {
			return
		}
	}
	l.retargets++
	want, any, anyBusy := model.Desired{}, false, false
	for _, q := range s.queues {
		if q.device != gpu || anyBusy && !q.busy {
			continue
		}
		d := q.want
		if d.Suspend == model.LevelBlock {
			d.Suspend = 0
		}
		if !any || q.busy && !anyBusy {
			want, any, anyBusy = d, true, q.busy
			continue
		}
		want.Suspend = min(want.Suspend, d.Suspend)
		want.Slice = max(want.Slice, d.Slice)
	}
	// The queue is only a name here; the limits are the gate's.
	want.Queue = model.QueueID{Session: s.ID}
	want.InFlight, want.Batch = 0, 0
	if want == (model.Desired{Queue: want.Queue}) {
		if _, ok := s.sent[gpu]; !ok {
			return // never touched
		}
	}
	if s.sent[gpu] == want {
		return
	}
	if w := s.worker(gpu); w != nil {
		stops, resumes := want.Suspend != 0, want.Suspend == 0 && s.sent[gpu].Suspend != 0
		s.sent[gpu] = want
		switch {
		case stops:
			w.Want(want, l.resumed[gpu]...)
		case resumes && l.deciding:
			l.resumed[gpu] = append(l.resumed[gpu], w.Want(want))
		default:
			w.Want(want)
		}
	}
}

// openAll opens every gate: the daemon stops.
func (l *loop) openAll() {
	l.stopping = true
	for _, s := range l.sessions {
		for _, q := range s.queues {
			if q.gate != nil {
				_ = q.gate.Close()
			}
		}
	}
}
