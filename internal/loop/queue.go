// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/gate"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/terms"
	"xsched/internal/wire"
)

// This file keeps clients and their queues in step with the pages, and applies decisions to them.

// join registers a client and its doorbell.
func (l *Loop) join(c *Client) error {
	if c.session.Ended() {
		return errEnded
	}
	// Callers are authorised for the oldest client of a PID, and change all of them. The PID of a process
	// that ended may be in use again before its client is removed.
	if old := l.byPID[c.PID]; len(old) > 0 && old[0].User != c.User {
		return errOldPID
	}
	now := l.now()
	c.page.Heartbeat(now)
	if c.bell >= 0 {
		// Edge-triggered: each ring wakes the loop once, without a read.
		if err := l.watch(c.bell, unix.EPOLLIN|unix.EPOLLET); err != nil {
			return fmt.Errorf("watch doorbell: %w", err)
		}
		l.bells[int32(c.bell)] = c
	}
	l.clients[c.ID] = c
	// A process is suspended by hand as a whole, with the clients that it opens later.
	c.held = c.held || slices.ContainsFunc(l.byPID[c.PID], func(o *Client) bool { return o.held })
	l.byPID[c.PID] = append(l.byPID[c.PID], c)
	c.requests.Begin(now)
	l.openAccount(c)
	l.regroup(now, c)
	if c.policy != "" {
		l.requestPolicy(c, c.policy)
	}
	return nil
}

// programOf returns the command line of a client, for the recording.
func (l *Loop) programOf(id model.SessionID) string {
	if c := l.clients[id]; c != nil {
		return c.Command
	}
	return ""
}

// remove removes a client and releases its page and doorbell.
func (l *Loop) remove(c *Client) {
	now := l.now()
	for _, q := range c.queues {
		l.removeQueue(now, c, q)
	}
	l.refuse(c, 0)
	if c.bell >= 0 {
		delete(l.bells, int32(c.bell))
		_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, c.bell, nil)
		_ = unix.Close(c.bell)
		c.bell = -1
	}
	delete(l.clients, c.ID)
	if l.byPID[c.PID] = slices.DeleteFunc(l.byPID[c.PID], func(o *Client) bool { return o == c }); len(l.byPID[c.PID]) == 0 {
		delete(l.byPID, c.PID)
	} else if c.stopped() {
		l.stop(now, l.byPID[c.PID][0])
	}
	for gpu := range c.loose {
		l.loosen(now, c, gpu, false)
	}
	l.forgetOutsiders()
	l.closeAccount(c)
	c.page.Release()
	l.dirty = true
}

// scan reads the page of a client. It reads each value once, because the client may change it.
func (l *Loop) scan(now model.Time, c *Client) {
	l.readRequests(now, c)
	n, refused := c.page.QueueCount(), 0
	for i := range n {
		v := c.page.Queue(i)
		q := c.queues[uint32(i)]
		if q != nil && (v.Generation != q.generation || !v.InUse()) {
			l.removeQueue(now, c, q)
			q = nil
			v = c.page.Queue(i) // removeQueue may have ended quiet
		}
		if q == nil {
			if !v.InUse() {
				continue
			}
			host := l.hostFor(c, v.Device)
			if !l.mayHave(c, v.Device, host) {
				refused++
				continue
			}
			if q = l.addQueue(now, c, uint32(i), &v, host); q == nil {
				continue
			}
		}
		l.follow(now, c, q, &v)
	}
	l.refuse(c, refused)
	l.updateWorkers(c)
}

// follow updates a queue from its page slot; the caller updates the workers.
func (l *Loop) follow(now model.Time, c *Client, q *queue, v *wire.QueueView) {
	if v.Transitions != q.transitions {
		l.measure(now, c, q, v)
	}
	if q.host != nil {
		l.followFolded(now, c, q, v)
		return
	}
	l.seeCopies(now, c, q, v)
	q.bursts = v.Bursts
	if q.submitted != v.Submitted {
		q.submitted = v.Submitted
		c.touch()
	}
	if q.quiet {
		l.usage.Worked(now, &q.use, v.Worked(now))
		c.touch()
	}
	waited := v.Waits != q.waits && !q.quiet
	q.waits = v.Waits
	if v.Transitions == q.transitions {
		if waited && q.busy {
			l.sawProgress(now, q, v, true)
		}
		return
	}
	var fed feed
	at := seenAt(now, v)
	switch {
	case at == seenLate:
	case v.Transitions == q.transitions+1:
		fed = feedOf(v, q.began)
	case v.Transitions == q.transitions+2:
		fed = feedBefore(v, q.began)
	} // otherwise the busy period differs from the known one
	again := v.Busy() && !q.quiet && q.began != seenLate && v.FedNS > q.began
	q.transitions, q.began = v.Transitions, at
	c.touch()
	q.own = v.Busy()
	switch {
	case q.own != q.busy && q.foldedBusy == 0:
		// A wait that ended an idle queue's segment comes before its next one.
		l.sawProgress(now, q, v, waited && v.Busy() || fed.submitted > 0)
		l.setBusy(now, c, q, q.own, fed)
		if q.busy && waited && v.FedNS >= v.ChangedNS {
			l.sawProgress(now, q, v, true)
		}
		l.followSegments(c, q)
		if q.busy && !q.quiet {
			l.becameBusy = append(l.becameBusy, model.Time(v.ChangedNS&(1<<63-1)))
		}
	case again && q.foldedBusy == 0:
		l.beganAgain(now, c, q, v, fed)
	case q.quiet:
		// The state changed and changed back: restart the current period in the engine.
		l.engine.SetBusy(now, q.id, !q.busy)
		l.engine.SetBusy(now, q.id, q.busy)
		l.dirty = true
	}
}

// markChanged schedules an update of a device's worker: one, however many queues change.
func (c *Client) markChanged(gpu model.DeviceID) {
	if !slices.Contains(c.changed, gpu) {
		c.changed = append(c.changed, gpu)
	}
}

// updateWorkers updates the workers of the changed devices.
func (l *Loop) updateWorkers(c *Client) {
	for _, gpu := range c.changed {
		l.updateWorker(c, gpu)
	}
	c.changed = c.changed[:0]
}

// setBusy marks a queue busy or idle. The caller updates the workers.
func (l *Loop) setBusy(now model.Time, c *Client, q *queue, busy bool, fed feed) {
	q.busy = busy
	c.touch()
	l.note(now, q)
	if busy {
		l.engine.SetBusy(now, q.id, true)
	} else {
		q.stops.Resume(now)
		l.engine.SetIdleAfter(now, q.id, fed.submitted, fed.waited)
	}
	l.dirty = true
	if len(c.queues) > 1 {
		c.markChanged(q.device)
	}
}

// addQueue adds a queue that a client announced, as one of host unless that is nil. A client that floods
// its page gets its queues over several heartbeats.
func (l *Loop) addQueue(now model.Time, c *Client, index uint32, v *wire.QueueView, host *queue) *queue {
	if !l.mayAdd(c) {
		return nil
	}
	l.markHooked(c, v.Device)
	q := &queue{
		id: model.QueueID{Session: c.ID, Index: index}, device: v.Device, generation: v.Generation,
		hints: terms.Queue{Device: v.Device, Stream: v.Stream, Offset: v.Priority}, transitions: v.Transitions, began: seenAt(now, v), busy: v.Busy(), gate: gate.New(c.page, int(index), l.metrics),
	}
	c.page.SetTell(int(index), 0) // of the slot's last queue
	c.requests.Enter(now, &q.period, v)
	if host != nil {
		l.unquiet(now, c, host)
		l.fold(now, c, host, q)
return q
	}
	l.enter(now, c, q)
	return q
}

// enter adds a queue to the engine; the caller updates the workers.
func (l *Loop) enter(now model.Time, c *Client, q *queue) {
	q.unproved = c.unproved(q.device)
	q.owner, q.own = c, q.busy
	c.touch()
	if c.hosts[q.device] == nil {
		c.hosts[q.device] = q
	}
	c.account.queues++
	c.queues[q.id.Index] = q
	c.onGPU[q.device]++
	l.queueCount.Add(1)
	regroup := c.hints.Count(&q.hints, 1)
	can := c.queueCapability(q)
	q.level, _ = can.Resolve(c.hints.Hint.Level)
	q.want = model.Desired{Queue: q.id}
	q.guess = meter.NewGuess(now, q.busy)
	if q.gate != nil {
		_ = q.gate.Apply(context.Background(), q.want)
	}
	if q.unproved != "" {
		l.setUnproved(now, c, q)
	} else {
		l.compete(now, c, q)
	}
	switch {
	case regroup:
		l.updateHints(now, c)
	case c.onGPU[q.device] == 2 && c.hasQueueHints(q.device):
		l.updateLevels(c) // the first queue now shares the hardware queues
	}
	l.dirty = true
	c.markChanged(q.device)
}

// removeQueue removes a queue; the caller updates the workers.
func (l *Loop) removeQueue(now model.Time, c *Client, q *queue) {
	l.readLast(now, c, q)
	if q.host != nil {
		l.unfold(now, c, q)
		return
	}
	l.dissolve(now, c, q)
	separate := c.onGPU[q.device] == 2 && c.hasQueueHints(q.device)
	l.unquiet(now, c, q)
	c.requests.Leave(&q.period)
	if q.unproved == "" {
		l.leave(now, c, q)
	}
	q.busy = false
	if q.gate != nil {
		_ = q.gate.Close()
	}
	c.touch()
	c.countSeparate(q, q.hints.Separate(), false)
	delete(c.queues, q.id.Index)
	l.dropBare(c, q)
	c.account.queues--
	if c.hosts[q.device] == q {
		c.newHost(q.device)
	}
	if c.onGPU[q.device]--; c.onGPU[q.device] == 0 {
		delete(c.onGPU, q.device)
	}
	l.queueCount.Add(-1)
	switch {
	case c.hints.Count(&q.hints, -1):
		l.updateHints(now, c)
	case separate:
		l.updateLevels(c)
	}
	l.dirty = true
	c.markChanged(q.device)
}

// deviceCapability returns what the drivers can do to a client on a device, and the reason for a
// limit.
func (c *Client) deviceCapability(gpu model.DeviceID) driver.Capability {
	if why := c.off[gpu]; why != "" {
		return driver.Capability{MaxLevel: model.LevelBlock, Reason: why}
	}
	if can, ok := c.caps[gpu]; ok {
		return can
	}
	why, _ := c.session.Hardware().Why()
	return driver.Capability{MaxLevel: model.LevelBlock, Reason: why}
}

// best returns the highest level that the drivers support for a client on a device.
func (c *Client) best(gpu model.DeviceID) model.Level {
	level, _ := c.deviceCapability(gpu).Resolve(model.LevelAuto)
	return level
}

// setCaps applies the result of a probe.
func (l *Loop) setCaps(c *Client, caps map[model.DeviceID]driver.Capability) {
	if l.clients[c.ID] == nil || maps.Equal(caps, c.caps) {
		return
	}
	c.caps = caps
	c.touch()
	l.updateProof(c)
	if c.Attached {
		l.addAttached(c)
	} else {
		l.addBare(c)
	}
	l.updateLevels(c)
	for gpu, can := range caps {
		if can.MaxLevel > model.LevelBlock {
			l.updateWorker(c, gpu)
		}
	}
}

// addAttached gives an attached client one queue on each GPU that it uses. Its work is estimated: the
// queue starts busy.
func (l *Loop) addAttached(c *Client) {
	for _, q := range c.queues {
		if _, ok := c.caps[q.device]; !ok {
			l.removeQueue(l.now(), c, q)
		}
	}
	for gpu, can := range c.caps {
		if c.onGPU[gpu] == 0 && can.MaxLevel > model.LevelBlock && len(c.queues) < maxGPUs {
			id := model.QueueID{Session: c.ID}
			for c.queues[id.Index] != nil {
				id.Index++
			}
			l.enter(l.now(), c, &queue{id: id, device: gpu, hints: terms.Queue{Device: gpu}, generation: 1, transitions: 1, busy: true})
		}
	}
	l.updateWorkers(c)
}

// updateLevels resolves the level of every queue of a client.
func (l *Loop) updateLevels(c *Client) {
	now := l.now()
	c.touch()
	for _, q := range c.queues {
		if q.host != nil {
			continue
		}
		can := c.queueCapability(q)
		q.level, _ = can.Resolve(c.hints.Hint.Level)
		l.engine.SetLevel(now, q.id, q.level, c.best(q.device), can.Slices)
	}
	l.dirty = true
}

// apply applies the desired state of one queue to its gate; applyDecision updates the workers.
func (l *Loop) apply(now model.Time, desired model.Desired) {
	c := l.clients[desired.Queue.Session]
	if c == nil {
		return
	}
	q := c.queues[desired.Queue.Index]
	if q == nil {
		return
	}
	if len(c.changed) == 0 {
		l.pendingUpdates = append(l.pendingUpdates, c)
	}
	c.markChanged(q.device)
	was := q.want.Suspend != 0
	q.want = desired
	c.touch()
	if stop := desired.Suspend != 0; q.guessed() && stop != was {
		l.guesses = append(l.guesses, guessChange{c, q, stop})
	} else {
		l.accountSuspension(now, c, q, was)
	}
	if q.gate != nil {
		l.setGate(c, q)
	}
}

// gateState returns the desired state of a queue's gate. The gate replaces missing hardware levels if
// a mode forces one level on all queues.
func (l *Loop) gateState(c *Client, q *queue) model.Desired {
	want := q.want
	if c.off[q.device] != "" {
		return model.Desired{Queue: want.Queue}
	}
	if want.Suspend > model.LevelBlock && c.queueCapability(q).MaxLevel < want.Suspend {
		want.Suspend = model.LevelBlock
	}
	return want
}

// updateWorker combines the desired states of a client's queues on a device for its worker. The
// queues share the process's hardware queues, so the worker suspends only if all busy queues shall be
// suspended.
func (l *Loop) updateWorker(c *Client, gpu model.DeviceID) {
	if can, ok := c.caps[gpu]; !ok || can.MaxLevel <= model.LevelBlock {
		if _, ok := c.sent[gpu]; !ok {
			return
		}
	}
	l.workerUpdates++
	want, any, anyBusy := model.Desired{}, false, false
	for _, q := range c.queues {
		if q.device != gpu || q.host != nil || anyBusy && !q.busy {
			continue
		}
		one := q.want
		if one.Suspend == model.LevelBlock {
			one.Suspend = 0
		}
		if !any || q.busy && !anyBusy {
			want, any, anyBusy = one, true, q.busy
			continue
		}
		want.Suspend = min(want.Suspend, one.Suspend)
		want.Slice = max(want.Slice, one.Slice)
	}
	// The index has no meaning for a worker, and the limits belong to the gate.
	want.Queue = model.QueueID{Session: c.ID}
	want.InFlight, want.Batch, want.Gather = 0, 0, false
	if want == (model.Desired{Queue: want.Queue}) {
		if _, ok := c.sent[gpu]; !ok {
			return // the worker has never been used
		}
	}
	if c.sent[gpu] == want {
		return
	}
	if w := c.session.Worker(gpu); w != nil {
		stops, resumes := want.Suspend != 0, want.Suspend == 0 && c.sent[gpu].Suspend != 0
		c.sent[gpu] = want
		if l.deciding && (stops || resumes) {
			l.wish(c, gpu, w, want)
		} else {
			w.Want(want)
		}
	}
}

// openGates opens every gate and ends scheduling.
func (l *Loop) openGates() {
	l.stopping = true
	for _, c := range l.clients {
		for _, q := range c.queues {
			if q.gate != nil {
				_ = q.gate.Close()
			}
		}
	}
}
