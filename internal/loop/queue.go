// SPDX-License-Identifier: Apache-2.0

package loop

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
func (l *Loop) join(c *Client) error {
	if c.session.Ended() {
		return errEnded
	}
	now := l.now()
	c.page.Heartbeat(now)
	if c.bell >= 0 {
		// Edge-triggered: every ring wakes the loop once, and nobody has to read it.
		if err := l.watch(c.bell, unix.EPOLLIN|unix.EPOLLET); err != nil {
			return fmt.Errorf("watch doorbell: %w", err)
		}
		l.bells[int32(c.bell)] = c
	}
	l.clients[c.ID] = c
	l.open(c)
	if c.policy != "" {
		l.wishPolicy(c, c.policy)
	}
	return nil
}

// programOf returns the command line of a session's process, for the recording.
func (l *Loop) programOf(id model.SessionID) string {
	if c := l.clients[id]; c != nil {
		return c.Command
	}
	return ""
}

// remove forgets a session.
func (l *Loop) remove(c *Client) {
	now := l.now()
	for _, q := range c.queues {
		l.removeQueue(now, c, q)
	}
	if c.bell >= 0 {
		delete(l.bells, int32(c.bell))
		_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, c.bell, nil)
		_ = unix.Close(c.bell)
		c.bell = -1
	}
	delete(l.clients, c.ID)
	l.closeAccount(c)
	c.page.Release()
	l.dirty = true
}

// scan reads a session's page after its doorbell rang, every value once.
func (l *Loop) scan(now model.Time, c *Client) {
	l.readMarks(now, c)
	n := c.page.QueueCount()
	for i := range n {
		v := c.page.Queue(i)
		q := c.queues[uint32(i)]
		if q != nil && (v.Generation != q.generation || !v.InUse()) {
			l.removeQueue(now, c, q)
			q = nil
			v = c.page.Queue(i) // it may have been quiet till now
		}
		if q == nil {
			if !v.InUse() {
				continue
			}
			if q = l.addQueue(now, c, uint32(i), &v); q == nil {
				continue
			}
		}
		l.follow(now, c, q, &v)
	}
	l.settle(c)
}

// follow takes over what a page shows of a queue; the caller settles.
func (l *Loop) follow(now model.Time, c *Client, q *queue, v *wire.QueueView) {
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
		l.setBusy(now, c, q, v.Busy(), fed)
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
func (c *Client) touch(gpu model.DeviceID) {
	if !slices.Contains(c.changed, gpu) {
		c.changed = append(c.changed, gpu)
	}
}

// settle tells the workers what has changed.
func (l *Loop) settle(c *Client) {
	for _, gpu := range c.changed {
		l.retarget(c, gpu)
	}
	c.changed = c.changed[:0]
}

// setBusy notes that a queue has work or none, fed as for engine.SetIdle; the caller settles.
func (l *Loop) setBusy(now model.Time, c *Client, q *queue, busy bool, fed time.Duration) {
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
	if len(c.queues) > 1 {
		c.touch(q.device)
	}
}

// addQueue enters a new queue, within bounds: a client that floods its page
// gets its queues by and by, or not at all.
func (l *Loop) addQueue(now model.Time, c *Client, index uint32, v *wire.QueueView) *queue {
	if c.adds++; c.adds > addsPerTick || l.queueCount.Load() >= maxQueues {
		return nil
	}
	if c.onGPU[v.Device] == 0 && len(c.onGPU) >= maxGPUs {
		return nil
	}
	l.hook(c, v.Device)
	q := &queue{
		id: model.QueueID{Session: c.ID, Index: index}, device: v.Device, generation: v.Generation,
		stream: v.Stream, offset: v.Priority, transitions: v.Transitions, began: seenAt(now, v), busy: v.Busy(), gate: gate.New(c.page, int(index), l.metrics),
	}
	l.enter(now, c, q)
	return q
}

// enter makes a queue known to the engine; the caller settles.
func (l *Loop) enter(now model.Time, c *Client, q *queue) {
	c.queues[q.id.Index] = q
	c.onGPU[q.device]++
	l.queueCount.Add(1)
	regroup := c.countStream(q, 1)
	can := l.abilities(c, q)
	q.level, _ = can.Resolve(c.hint.Level)
	q.want = model.Desired{Queue: q.id}
	q.guess = guess{idle: !q.busy, counted: now, since: now}
	l.gpus.enter(now, q)
	if q.gate != nil {
		_ = q.gate.Apply(context.Background(), q.want)
	}
	l.engine.AddQueue(now, model.Queue{
		ID: q.id, PID: c.PID, Device: q.device, Hint: c.told(l.hintOf(c, q)), Level: q.level, Slices: can.Slices, Busy: q.busy, Guessed: q.guessed(),
	})
	if c.held {
		l.engine.SetHeld(now, c.PID, true)
	}
	switch {
	case regroup:
		l.rehint(now, c)
	case c.onGPU[q.device] == 2 && c.apart(q.device):
		l.relevel(c) // the first has the hardware's queues no longer to itself
	}
	l.dirty = true
	c.touch(q.device)
}

// removeQueue forgets a queue; the caller settles.
func (l *Loop) removeQueue(now model.Time, c *Client, q *queue) {
	apart := c.onGPU[q.device] == 2 && c.apart(q.device)
	l.loud(now, c, q)
	l.engine.RemoveQueue(now, q.id)
	l.gpus.leave(now, q)
	if q.gate != nil {
		_ = q.gate.Close()
	}
	delete(c.queues, q.id.Index)
	l.forgetBare(c, q)
	if c.onGPU[q.device]--; c.onGPU[q.device] == 0 {
		delete(c.onGPU, q.device)
	}
	l.queueCount.Add(-1)
	switch {
	case c.countStream(q, -1):
		l.rehint(now, c)
	case apart:
		l.relevel(c)
	}
	l.dirty = true
	c.touch(q.device)
}

// capability is what can be done to a session on a device, with the reason when
// that is not everything.
func (l *Loop) capability(c *Client, gpu model.DeviceID) driver.Capability {
	if can, ok := c.caps[gpu]; ok {
		return can
	}
	why, _ := c.session.Hardware().Why()
	return driver.Capability{MaxLevel: model.LevelBlock, Reason: why}
}

// setCaps takes over what probing has shown.
func (l *Loop) setCaps(c *Client, caps map[model.DeviceID]driver.Capability) {
	if l.clients[c.ID] == nil || maps.Equal(caps, c.caps) {
		return
	}
	c.caps = caps
	if c.Attached {
		l.enterAttached(c)
	} else {
		l.enterBare(c)
	}
	l.relevel(c)
	for gpu, can := range caps {
		if can.MaxLevel > model.LevelBlock {
			l.retarget(c, gpu)
		}
	}
}

// enterAttached gives an attached process one queue a GPU. Nobody tells when
// it has work, so it counts as having some until it showed none for a while.
func (l *Loop) enterAttached(c *Client) {
	for gpu, can := range c.caps {
		if c.onGPU[gpu] == 0 && can.MaxLevel > model.LevelBlock && len(c.queues) < maxGPUs {
			id := model.QueueID{Session: c.ID, Index: uint32(len(c.queues))}
			l.enter(l.now(), c, &queue{id: id, device: gpu, generation: 1, transitions: 1, busy: true})
		}
	}
	l.settle(c)
}

// relevel resolves the level of every queue of a session again.
func (l *Loop) relevel(c *Client) {
	now := l.now()
	for _, q := range c.queues {
		can := l.abilities(c, q)
		q.level, _ = can.Resolve(c.hint.Level)
		l.engine.SetLevel(now, q.id, q.level, can.Slices)
	}
	l.dirty = true
}

// publish carries a decision out: the gate here, the hardware through its worker, which
// publishAll tells.
func (l *Loop) publish(now model.Time, d model.Desired) {
	c := l.clients[d.Queue.Session]
	if c == nil {
		return
	}
	q := c.queues[d.Queue.Index]
	if q == nil {
		return
	}
	if len(c.changed) == 0 {
		l.unsettled = append(l.unsettled, c)
	}
	c.touch(q.device)
	was := q.want.Suspend != 0
	q.want = d
	if stop := d.Suspend != 0; q.guessed() && stop != was {
		l.guesses = append(l.guesses, guessChange{c, q, stop})
	} else {
		l.countStop(now, c, q, was)
	}
	if q.gate != nil {
		_ = q.gate.Apply(context.Background(), l.gated(c, q))
	}
}

// countStop keeps the account of a queue that was suspended or resumed.
func (l *Loop) countStop(now model.Time, c *Client, q *queue, was bool) {
	l.note(now, q)
	switch stop := q.want.Suspend != 0; {
	case stop && !was && q.busy:
		q.preemptions++
		l.blame(c, q)
		q.suspendedAt = now
	case !stop && q.suspendedAt != 0:
		l.waits.Record(now.Sub(q.suspendedAt))
		q.suspendedNS += now.Sub(q.suspendedAt)
		q.suspendedAt = 0
	}
}

// gated is what the gate has to do for a queue: also what hardware that isn't
// there should have done, when a mode forces a level on everybody.
func (l *Loop) gated(c *Client, q *queue) model.Desired {
	d := q.want
	if d.Suspend > model.LevelBlock && l.abilities(c, q).MaxLevel < d.Suspend {
		d.Suspend = model.LevelBlock
	}
	return d
}

// retarget tells the worker of a process on a device what its queues there add
// up to: the hardware's queues are the process's, so it stops only when all
// that have work shall stop.
func (l *Loop) retarget(c *Client, gpu model.DeviceID) {
	if can, ok := c.caps[gpu]; !ok || can.MaxLevel <= model.LevelBlock {
		if _, ok := c.sent[gpu]; !ok {
			return
		}
	}
	l.retargets++
	want, any, anyBusy := model.Desired{}, false, false
	for _, q := range c.queues {
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
	want.Queue = model.QueueID{Session: c.ID}
	want.InFlight, want.Batch = 0, 0
	if want == (model.Desired{Queue: want.Queue}) {
		if _, ok := c.sent[gpu]; !ok {
			return // never touched
		}
	}
	if c.sent[gpu] == want {
		return
	}
	if w := c.session.Worker(gpu); w != nil {
		stops, resumes := want.Suspend != 0, want.Suspend == 0 && c.sent[gpu].Suspend != 0
		c.sent[gpu] = want
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
func (l *Loop) openAll() {
	l.stopping = true
	for _, c := range l.clients {
		for _, q := range c.queues {
			if q.gate != nil {
				_ = q.gate.Close()
			}
		}
	}
}
