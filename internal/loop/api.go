// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/identity"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/terms"
	"xsched/internal/wire"
)

// This file is the interface to other goroutines. Each request runs on the loop.

var (
	errEnded  = errors.New("the session has ended")
	errOldPID = errors.New("a session of another user with this PID has not ended yet; try again")
)

// Heartbeat writes a heartbeat to the page of a client that has not joined yet.
func (l *Loop) Heartbeat(ctx context.Context, c *Client) error {
	return l.call(ctx, func() { c.page.Heartbeat(clock.Now()) })
}

// Join makes a client known to the engine and starts listening to its doorbell. caps is nil until
// the drivers have probed the client.
func (l *Loop) Join(ctx context.Context, c *Client, caps map[model.DeviceID]driver.Capability) error {
	var joined error
	err := l.call(c.on(ctx), func() {
		if joined = l.pages.join(c); joined == nil {
			l.pages.setCaps(c, caps)
		}
	})
	return errors.Join(err, joined)
}

// Remove removes a client, whether it has joined or not, and releases its page and doorbell. It returns
// what the client used in all. It is not bound to a context: sessions end while the daemon stops, and the
// loop ends last.
func (l *Loop) Remove(c *Client) (totals []GPUTotal, requests Counts) {
	_ = l.call(c.on(context.Background()), func() {
		l.pages.remove(c)
		totals, requests = c.use.Totals(clock.Now(), l.activity.usage), c.requests.Figures().Counts()
	})
	l.mail.close(c.inbox)
	return totals, requests
}

// Abandon gives up a client that has neither joined nor been removed. Its page and doorbell stay the caller's.
func (l *Loop) Abandon(c *Client) { l.mail.close(c.inbox) }

// SetCapabilities updates what the drivers can do to a client on each device.
func (l *Loop) SetCapabilities(ctx context.Context, c *Client, caps map[model.DeviceID]driver.Capability) error {
	return l.post(c.on(ctx), func() { l.pages.setCaps(c, caps) })
}

// Turned reports that a worker lost or regained control of a client on a device.
func (l *Loop) Turned(ctx context.Context, c *Client, gpu model.DeviceID, w *driver.Worker) error {
	return l.post(c.on(ctx), func() { l.turned(c, gpu, w.Off(), w.Uncontrolled()) })
}

// turned applies a change of what a worker can do. While scheduling is off, the gate is open, too.
func (l *Loop) turned(c *Client, gpu model.DeviceID, why string, lost bool) {
	if l.registry.clients[c.ID] == nil {
		return
	}
	l.unmanaged.lose(clock.Now(), c, gpu, lost)
	if c.workers.off[gpu] == why {
		return
	}
	off := maps.Clone(c.workers.off) // snapshots have the old one
	if off == nil {
		off = map[model.DeviceID]string{}
	}
	if off[gpu] = why; why == "" {
		delete(off, gpu)
	}
	c.workers.off = off
	l.hints.updateLevels(c)
	for _, q := range c.queues {
		if q.device == gpu && q.gate != nil {
			l.dispatch.applyGate(q)
		}
	}
}

// TakeHint applies a hint that a client has sent.
func (l *Loop) TakeHint(ctx context.Context, c *Client, f *wire.HintFrame) error {
	return l.post(c.on(ctx), func() { l.pages.takeHint(c, f) })
}

// SetNice updates the CPU nice value of a client, or returns ErrBusy. It does not block.
func (l *Loop) SetNice(c *Client, nice int) error {
	return l.offer(c.User, func() { l.hints.setNice(c, nice) })
}

// OpenGates ends scheduling and opens every gate, because the daemon stops. It returns when ctx
// ends at the latest; a request that the loop has accepted still runs.
func (l *Loop) OpenGates(ctx context.Context) {
	opened := make(chan struct{})
	if l.post(ctx, func() { l.dispatch.openAll(); close(opened) }) != nil {
		return
	}
	select {
	case <-opened:
	case <-ctx.Done():
	}
}

// NewClient creates the state of a session that is about to join. It enforces the priority limit
// of the client's user, except for attached clients without a rule or grant, whose caller was authorised.
func (l *Loop) NewClient(o ClientOptions) *Client {
	c := &Client{
		Identity: o.Identity, session: o.Session, page: o.Page, leases: o.Leases, inbox: l.mail.open(o.User), started: time.Now(),
		bell: o.Doorbell, policy: o.Policy, hold: hold{byHand: o.Held || o.Kept.Held},
		queues: map[uint32]*queue{}, counts: deviceCounts{map[model.DeviceID]int{}, map[model.DeviceID]int{}, map[model.DeviceID]int{}},
		workers: clientWorkers{sent: map[model.DeviceID]model.Desired{}}, merge: clientMerge{primaries: map[model.DeviceID]*queue{}}, use: meter.NewProgramUse(),
	}
	c.memory.evicted = o.Kept.Evicted
	c.hints = terms.New(terms.Options{
		Book: l.Book, User: o.User, Groups: c.groups(), Attached: o.Attached,
		Nice: o.Nice, Said: o.Said, Granted: o.Granted, Terms: o.Terms, Kept: o.Kept,
	})
	l.hints.warn(c, c.hints.Note)
	return c
}

// EditHint applies an edit and returns the hint in force.
func (l *Loop) EditHint(ctx context.Context, e HintEdit) (hint model.Hint, err error) {
	found := e.Queue == nil
	err = l.edit(ctx, e.PID, func(c *Client) error {
		if e.Queue == nil {
			if hint, err = c.hints.EditProcess(&e); err == nil {
				l.hints.update(clock.Now(), c)
			}
			return err
		}
		q := c.queues[*e.Queue]
		if q == nil || q.merge.primary != nil {
			return nil
		}
		found = true
		had := q.hints.Separate()
		if hint, err = c.hints.EditQueue(&q.hints, &e); err == nil {
			c.countSeparate(q, had, q.hints.Separate())
			l.engine.SetQueueHint(clock.Now(), q.id, c.hints.EffectiveForEngine(&q.hints))
			l.hints.updateLevels(c) // separate queues only support level 1
		}
		return err
	})
	if err == nil && !found {
		err = ErrUnknownQueue
	}
	return hint, err
}

// SetTerms changes the terms of a client.
func (l *Loop) SetTerms(ctx context.Context, c *Client, t Terms) error {
	return l.post(c.on(ctx), func() {
		if l.registry.clients[c.ID] == c {
			l.setTerms(clock.Now(), c, t)
		}
	})
}

// Reconfigure applies a configuration between two decisions: limits, the terms of clients by session,
// and what f changes in the engine.
func (l *Loop) Reconfigure(ctx context.Context, limits Limits, terms map[model.SessionID]Terms, f func(e *engine.Engine)) error {
	return l.call(ctx, func() {
		now := clock.Now()
		l.poll.sample(now)
		l.Book.Replace(limits)
		for _, c := range l.registry.clients {
			t, ok := terms[c.ID]
			if !ok {
				t = c.hints.Terms
			}
			l.setTerms(now, c, t)
		}
		f(l.engine.Engine)
		l.publishConfig()
		l.engine.dirty = true
	})
}

// SetAllTerms changes the terms of clients by session, between two decisions.
func (l *Loop) SetAllTerms(ctx context.Context, terms map[model.SessionID]Terms) error {
	return l.call(ctx, func() {
		now := clock.Now()
		for id, t := range terms {
			if c := l.registry.clients[id]; c != nil {
				l.setTerms(now, c, t)
			}
		}
		l.engine.dirty = true
	})
}

// setTerms replaces what the configuration gives to a client. Without a change of hint or limit the
// engine is not notified.
func (l *Loop) setTerms(now model.Time, c *Client, t Terms) {
	changed := c.hints.SetTerms(t)
	c.touch()
	if changed {
		l.hints.update(now, c)
	}
	l.holds.regroup(now, c)
}

// SetHeld suspends or resumes a process on request of a control client.
func (l *Loop) SetHeld(ctx context.Context, pid int, held bool) error {
	return l.edit(ctx, pid, func(c *Client) error {
		c.hold.byHand = held
		l.holds.stop(clock.Now(), c)
		return nil
	})
}

// HoldGroups replaces the groups that are held. The loop only reads the map.
func (l *Loop) HoldGroups(ctx context.Context, groups HeldGroups) error {
	return l.call(ctx, func() {
		l.holds.groups = groups
		now := clock.Now()
		for _, c := range l.registry.clients {
			l.holds.regroup(now, c)
		}
	})
}

// Held reports whether a client is suspended by hand.
func (l *Loop) Held(ctx context.Context, c *Client) (held bool, err error) {
	err = l.call(ctx, func() { held = c.hold.byHand })
	return held, err
}

// Observe reports whether a program of a user used CPU time since the last call, or returns ErrBusy.
// The caller observes each program about every 50 ms.
func (l *Loop) Observe(user identity.User, id model.SessionID, worked bool) error {
	return l.offer(user, func() {
		c := l.registry.clients[id]
		if c == nil {
			return
		}
		now := clock.Now()
		for _, q := range c.queues {
			if q.guessed() {
				l.estimates.observe(now, c, q, worked)
			}
		}
		l.dispatch.updateWorkers(c)
	})
}

// Unhooked returns the unhooked clients. A client that has called a hook meanwhile is none any more: it
// announces its queues.
func (l *Loop) Unhooked(ctx context.Context) ([]UnhookedClient, error) {
	if l.pages.unhookedQueues.Load() == 0 {
		return nil, nil
	}
	var out []UnhookedClient
	err := l.call(ctx, func() {
		for c := range l.pages.unhooked {
			if c.page.Counters().HookedCalls > 0 {
				for gpu := range c.hooks.missing {
					l.pages.markHooked(c, gpu)
				}
				l.dispatch.updateWorkers(c)
			}
			if len(c.hooks.missing) > 0 {
				out = append(out, UnhookedClient{c.ID, c.PID, c.User})
			}
		}
	})
	return out, err
}

// SetUnmanaged reports the GPUs that programs without a session use, as of a complete scan.
func (l *Loop) SetUnmanaged(ctx context.Context, gpus map[model.DeviceID]bool) error {
	return l.call(ctx, func() {
		now := clock.Now()
		for gpu := range l.unmanaged.on {
			if !gpus[gpu] {
				l.unmanaged.share(now, gpu, false)
			}
		}
		for gpu, shared := range gpus {
			l.unmanaged.share(now, gpu, shared)
		}
		l.unmanaged.scanned = len(l.registry.clients) > 0
	})
}

// AddUnmanaged reports that a program on these GPUs just became unmanaged.
func (l *Loop) AddUnmanaged(ctx context.Context, gpus []model.DeviceID) error {
	return l.call(ctx, func() {
		for _, gpu := range gpus {
			l.unmanaged.share(clock.Now(), gpu, true)
		}
	})
}

// edit runs f on every client of a process, on the loop.
func (l *Loop) edit(ctx context.Context, pid int, f func(c *Client) error) error {
	found, failed := false, error(nil)
	err := l.call(ctx, func() {
		for _, c := range l.registry.byPID[pid] {
			found = true
			failed = errors.Join(failed, f(c))
			c.touch()
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

// Settle waits until what was decided after the last change of a process is in force: in its pages, and
// on its hardware queues.
func (l *Loop) Settle(ctx context.Context, pid int) error {
	if _, err := l.snapshot(ctx); err != nil { // taken behind a decision
		return err
	}
	var workers []*driver.Worker
	err := l.edit(ctx, pid, func(c *Client) error {
		workers = slices.AppendSeq(workers, maps.Values(c.session.Workers()))
		return nil
	})
	for _, w := range workers {
		if err == nil {
			err = w.Settle(ctx)
		}
	}
	return err
}

// Kept returns what control clients have set for a process.
func (l *Loop) Kept(ctx context.Context, pid int) (who Identity, kept Kept, err error) {
	err = l.edit(ctx, pid, func(c *Client) error {
		who, kept = c.Identity, c.hints.Kept()
		kept.Held, kept.Evicted = c.hold.byHand, c.memory.evicted
		l.readings++
		kept.Reading = l.readings
		return nil
	})
	return who, kept, err
}

// Identities returns the clients that have joined.
func (l *Loop) Identities(ctx context.Context) ([]Identity, error) {
	var out []Identity
	err := l.call(ctx, func() {
		out = slices.Grow(out, len(l.registry.clients))
		for _, c := range l.registry.clients {
			out = append(out, c.Identity)
		}
	})
	return out, err
}

// Engine runs f with the engine on the loop, which then decides.
func (l *Loop) Engine(ctx context.Context, f func(e *engine.Engine)) error {
	return l.call(ctx, func() {
		l.poll.sample(clock.Now())
		f(l.engine.Engine)
		l.publishConfig()
		l.engine.dirty = true
	})
}

// Wedge blocks the loop, for fault injection.
func (l *Loop) Wedge(ctx context.Context, d time.Duration) error {
	return l.post(ctx, func() { time.Sleep(d) })
}
