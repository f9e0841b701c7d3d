// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/driver/gate"
	"xsched/internal/model"
	"xsched/internal/terms"
	"xsched/internal/wire"
)

// pages keeps clients and their queues in step with the pages.
type pages struct {
	engine    *input
	metrics   *driver.Metrics
	thread    *thread
	registry  *registry
	pace      *pacer
	activity  *activity
	dispatch  *dispatcher
	hints     *hinter
	holds     *holds
	unmanaged *unmanaged
	poll      *poller
	merge     *merger
	progress  *progress
	requests  *requestReader
	memory    *memory
	admission *admission
	estimates *estimator

	unhookedQueues atomic.Int64     // queues of programs without hooks
	unhooked       map[*Client]bool // those with such queues
	becameBusy     []model.Time     // idle-to-busy transitions of this pass, as the clients dated them
}

// join registers a client and its doorbell.
func (p *pages) join(c *Client) error {
	if c.session.Ended() {
		return errEnded
	}
	// Callers are authorised for the oldest client of a PID, and change all of them. The PID of a process
	// that ended may be in use again before its client is removed.
	if old := p.registry.byPID[c.PID]; len(old) > 0 && old[0].User != c.User {
		return errOldPID
	}
	now := clock.Now()
	c.page.Heartbeat(now)
	c.page.SetMemoryQuota(c.hints.Hint.Memory)
	c.page.SetMemoryMovable(c.hints.Hint.Movable)
	if c.bell >= 0 {
		// Edge-triggered: each ring wakes the loop once, without a read.
		if err := p.thread.watch(c.bell, unix.EPOLLIN|unix.EPOLLET); err != nil {
			return fmt.Errorf("watch doorbell: %w", err)
		}
		p.registry.bells[int32(c.bell)] = c
	}
	p.registry.clients[c.ID] = c
	// A process is suspended by hand as a whole, with the clients that it opens later.
	c.hold.byHand = c.hold.byHand || slices.ContainsFunc(p.registry.byPID[c.PID], func(o *Client) bool { return o.hold.byHand })
	p.registry.byPID[c.PID] = append(p.registry.byPID[c.PID], c)
	c.requests.Begin(now)
	p.pace.open(c)
	p.holds.regroup(now, c)
	if c.policy != "" {
		p.hints.requestPolicy(c, c.policy)
	}
	return nil
}

// remove removes a client and releases its page and doorbell.
func (p *pages) remove(c *Client) {
	now := clock.Now()
	for _, q := range c.queues {
		p.removeQueue(now, c, q)
	}
	p.merge.refuse(c, 0)
	if c.bell >= 0 {
		delete(p.registry.bells, int32(c.bell))
		_ = unix.EpollCtl(p.thread.epoll, unix.EPOLL_CTL_DEL, c.bell, nil)
		_ = unix.Close(c.bell)
		c.bell = -1
	}
	delete(p.registry.clients, c.ID)
	if p.registry.byPID[c.PID] = slices.DeleteFunc(p.registry.byPID[c.PID], func(o *Client) bool { return o == c }); len(p.registry.byPID[c.PID]) == 0 {
		delete(p.registry.byPID, c.PID)
	} else if c.stopped() {
		p.holds.stop(now, p.registry.byPID[c.PID][0])
	}
	for gpu := range c.uncontrolled {
		p.unmanaged.lose(now, c, gpu, false)
	}
	p.unmanaged.forget()
	p.memory.remove(c)
	p.pace.close(c)
	c.page.Release()
	p.engine.dirty = true
}

// scan reads the page of a client. It reads each value once, because the client may change it.
func (p *pages) scan(now model.Time, c *Client) {
	p.requests.readMarks(now, c)
	p.memory.read(now, c)
	n, refused := c.page.QueueCount(), 0
	for i := range n {
		v := c.page.Queue(i)
		q := c.queues[uint32(i)]
		if q != nil && (v.Generation != q.generation || !v.InUse()) {
			p.removeQueue(now, c, q)
			q = nil
			v = c.page.Queue(i) // removeQueue may have ended polling
		}
		if q == nil {
			if !v.InUse() {
				continue
			}
			primary := p.merge.primaryFor(c, v.Device)
			if !p.merge.mayHave(c, v.Device, primary) {
				refused++
				continue
			}
			if q = p.addQueue(now, c, uint32(i), &v, primary); q == nil {
				continue
			}
		}
		p.follow(now, c, q, &v)
	}
	p.merge.refuse(c, refused)
	p.dispatch.updateWorkers(c)
}

// follow updates a queue from its page slot; the caller updates the workers.
func (p *pages) follow(now model.Time, c *Client, q *queue, v *wire.QueueView) {
	if v.Transitions != q.seen.transitions {
		p.requests.measure(now, c, q, v)
	}
	if q.merge.primary != nil {
		p.merge.follow(now, c, q, v)
		return
	}
	p.progress.readCopies(now, c, q, v)
	q.seen.bursts = v.Bursts
	if q.seen.submitted != v.Submitted {
		q.seen.submitted = v.Submitted
		c.touch()
	}
	if q.polled {
		p.activity.usage.Worked(now, &q.use, v.Worked(now))
		c.touch()
	}
	waited := v.Waits != q.seen.waits && !q.polled
	q.seen.waits = v.Waits
	if v.Transitions == q.seen.transitions {
		if waited && q.busy {
			p.activity.progressed(now, q, v, true)
		}
		return
	}
	var how submission
	at := seenAt(now, v)
	switch {
	case at == seenLate:
	case v.Transitions == q.seen.transitions+1:
		how = submissionOf(v, q.seen.changed)
	case v.Transitions == q.seen.transitions+2:
		how = submissionBefore(v, q.seen.changed)
	} // otherwise the busy period differs from the known one
	again := v.Busy() && !q.polled && q.seen.changed != seenLate && v.FedNS > q.seen.changed
	q.seen.transitions, q.seen.changed = v.Transitions, at
	c.touch()
	q.merge.own = v.Busy()
	switch {
	case q.merge.own != q.busy && q.merge.busy == 0:
		// A wait that ended an idle queue's segment comes before its next one.
		p.activity.progressed(now, q, v, waited && v.Busy() || how.submitted > 0)
		p.activity.setBusy(now, c, q, q.merge.own, how)
		if q.busy && waited && v.FedNS >= v.ChangedNS {
			p.activity.progressed(now, q, v, true)
		}
		p.progress.request(c, q)
		if q.busy && !q.polled {
			p.becameBusy = append(p.becameBusy, model.Time(v.ChangedNS&(1<<63-1)))
		}
	case again && q.merge.busy == 0:
		p.progress.beganAgain(now, c, q, v, how)
	case q.polled:
		// The state changed and changed back: restart the current period in the engine.
		p.engine.SetBusy(now, q.id, !q.busy)
		p.engine.SetBusy(now, q.id, q.busy)
		p.engine.dirty = true
	}
}

// addQueue adds a queue that a client announced, merged with primary unless that is nil. A client that floods
// its page gets its queues over several heartbeats.
func (p *pages) addQueue(now model.Time, c *Client, index uint32, v *wire.QueueView, primary *queue) *queue {
	if !p.merge.mayAdd(c) {
		return nil
	}
	p.markHooked(c, v.Device)
	q := &queue{
		id: model.QueueID{Session: c.ID, Index: index}, device: v.Device, generation: v.Generation,
		hints: terms.Queue{Stream: v.Stream, Offset: v.Priority}, seen: reading{transitions: v.Transitions, changed: seenAt(now, v)}, busy: v.Busy(), gate: gate.New(c.page, int(index), p.metrics),
	}
	c.page.SetTell(int(index), 0) // of the slot's last queue
	c.requests.Enter(now, &q.period, v)
	if primary != nil {
		p.poll.end(now, c, primary)
		p.merge.add(now, c, primary, q)
		return q
	}
	p.enter(now, c, q)
	return q
}

// enter adds a queue to the engine; the caller updates the workers.
func (p *pages) enter(now model.Time, c *Client, q *queue) {
	q.unproved = c.unproved(q.device)
	if q.guessed() {
		p.estimates.begin(now, c, q)
	}
	q.owner, q.hints.Device, q.merge.own = c, q.device, q.busy
	c.touch()
	if c.merge.primaries[q.device] == nil {
		c.merge.primaries[q.device] = q
	}
	c.account.queues++
	c.queues[q.id.Index] = q
	c.counts.queues[q.device]++
	p.merge.queues.Add(1)
	regroup := c.hints.Count(&q.hints, 1)
	can := c.queueCapability(q)
	q.level, _ = can.Resolve(c.hints.Hint.Level)
	q.want = model.Desired{Queue: q.id}
	if q.gate != nil {
		_ = q.gate.Apply(context.Background(), q.want)
	}
	if q.unproved != "" {
		p.dispatch.setUnproved(now, c, q)
	} else {
		p.admission.enter(now, c, q)
	}
	switch {
	case regroup:
		p.hints.update(now, c)
	case c.counts.queues[q.device] == 2 && c.hasQueueHints(q.device):
		p.hints.updateLevels(c) // the first queue now shares the hardware queues
	}
	p.engine.dirty = true
	c.markChanged(q.device)
}

// removeQueue removes a queue; the caller updates the workers.
func (p *pages) removeQueue(now model.Time, c *Client, q *queue) {
	p.requests.readLast(now, c, q)
	if q.merge.primary != nil {
		p.merge.remove(now, c, q)
		return
	}
	p.merge.dissolve(now, c, q)
	separate := c.counts.queues[q.device] == 2 && c.hasQueueHints(q.device)
	p.poll.end(now, c, q)
	c.requests.Leave(&q.period)
	if q.unproved == "" {
		p.admission.leave(now, c, q)
	}
	q.busy = false
	if q.gate != nil {
		_ = q.gate.Close()
	}
	c.touch()
	c.countSeparate(q, q.hints.Separate(), false)
	delete(c.queues, q.id.Index)
	p.estimates.end(now, c, q)
	p.dropUnhooked(c, q)
	c.account.queues--
	if c.merge.primaries[q.device] == q {
		c.newPrimary(q.device)
	}
	if c.counts.queues[q.device]--; c.counts.queues[q.device] == 0 {
		delete(c.counts.queues, q.device)
	}
	p.merge.queues.Add(-1)
	switch {
	case c.hints.Count(&q.hints, -1):
		p.hints.update(now, c)
	case separate:
		p.hints.updateLevels(c)
	}
	p.engine.dirty = true
	c.markChanged(q.device)
}

// setCaps applies the result of a probe.
func (p *pages) setCaps(c *Client, caps map[model.DeviceID]driver.Capability) {
	if p.registry.clients[c.ID] == nil || maps.Equal(caps, c.caps) {
		return
	}
	c.caps = caps
	c.touch()
	p.admission.update(c)
	if c.Attached {
		p.addAttached(c)
	} else {
		p.addUnhooked(c)
	}
	p.hints.updateLevels(c)
	for gpu, can := range caps {
		if can.MaxLevel > model.LevelBlock {
			p.dispatch.updateWorker(c, gpu)
		}
	}
}

// serveDoorbell reads the page of a client that rang, unless its user has used its share.
func (p *pages) serveDoorbell(now model.Time, c *Client) {
	a := c.account
	if !p.pace.shared() {
		p.scan(now, c)
		return
	}
	if !a.admit(p.pace.window) {
		p.pace.throttle(c)
		return
	}
	p.pace.bills.rang = append(p.pace.bills.rang, a)
	start := clock.Now()
	p.scan(now, c)
	a.spend(clock.Now().Sub(start))
}

// takeHint applies a hint of a program.
func (p *pages) takeHint(c *Client, f *wire.HintFrame) {
	if p.registry.clients[c.ID] == nil {
		return
	}
	now := clock.Now()
	c.touch()
	change := f.Hint.Change()
	if f.Queue == wire.QueueAll {
		if f.Hint.Said&wire.HintPolicy != 0 {
			p.hints.requestPolicy(c, f.PolicyString())
		}
		p.hints.warn(c, c.hints.Say(&change))
		if c.admitHints(len(c.queues)) {
			p.hints.update(now, c)
		}
		return
	}
	q := c.queues[f.Queue]
	if q == nil || q.generation != f.Generation {
		p.scan(now, c) // the hint may arrive before the doorbell
		if q = c.queues[f.Queue]; q == nil || q.generation != f.Generation {
			return
		}
	}
	had := q.hints.Separate()
	p.hints.warn(c, c.hints.SayQueue(&q.hints, &change))
	c.countSeparate(q, had, q.hints.Separate())
	if c.admitHints(1) {
		p.engine.SetQueueHint(now, q.id, c.hints.EffectiveForEngine(&q.hints))
		p.engine.dirty = true
	}
}
