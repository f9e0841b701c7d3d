// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"

	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/terms"
	"xsched/internal/wire"
)

// This file brings hints about a process or one of its queues to the engine. Package terms decides
// which are in force.

// Types of package terms that requests to the loop use.
type (
	Terms    = terms.Terms
	Grant    = terms.Grant
	Kept     = terms.Kept
	Limit    = terms.Limit
	Limits   = terms.Limits
	HintEdit = terms.Edit
)

// ErrPinned reports a hint that the administrator has set.
var ErrPinned = terms.ErrPinned

// warn logs that a priority was not granted; empty: it was.
func (l *Loop) warn(c *Client, note string) {
	if note != "" {
		l.log.Warn("priority not granted", "pid", c.PID, "user", c.User, "reason", note)
	}
}

func (l *Loop) takeHint(c *Client, f *wire.HintFrame) {
	if l.clients[c.ID] == nil {
		return
	}
	now := l.now()
	c.touch()
	change := f.Hint.Change()
	if f.Queue == wire.QueueAll {
		if f.Hint.Said&wire.HintPolicy != 0 {
			l.requestPolicy(c, f.PolicyString())
		}
		l.warn(c, c.hints.Say(&change))
		if c.admitHints(len(c.queues)) {
			l.updateHints(now, c)
		}
		return
	}
	q := c.queues[f.Queue]
	if q == nil || q.generation != f.Generation {
		l.scan(now, c) // the hint may arrive before the doorbell
		if q = c.queues[f.Queue]; q == nil || q.generation != f.Generation {
			return
		}
	}
	had := q.hints.Separate()
	l.warn(c, c.hints.SayQueue(&q.hints, &change))
	c.countSeparate(q, had, q.hints.Separate())
	if c.admitHints(1) {
		l.engine.SetQueueHint(now, q.id, c.hints.EffectiveForEngine(&q.hints))
		l.dirty = true
	}
}

// hintsPerTick limits the hint updates of one client per heartbeat, counted in queues. Further
// updates wait for the next heartbeat.
const hintsPerTick = 256

func (c *Client) admitHints(queues int) bool {
	if c.hinted > 0 && c.hinted+queues > hintsPerTick {
		c.stale = true
		return false
	}
	c.hinted += queues
	return true
}

// tickHints resets the limit of a client. Updates that have waited follow when its user has time.
func (l *Loop) tickHints(c *Client) {
	c.hinted = 0
	if c.stale && !c.listed {
		c.listed = true
		l.stale = append(l.stale, c)
	}
}

// freshen applies hint updates that have waited, within the users' shares.
func (l *Loop) freshen(now model.Time) {
	if len(l.stale) == 0 {
		return
	}
	later, begin := l.stale[:0], now
	for i, c := range l.stale {
		if c.account == nil || !c.stale { // it has left, or an update came first
			c.listed = false
			continue
		}
		if begin.Sub(now) >= freshenPerPass || l.shared() && !c.account.within(l.window) {
			later = append(later, l.stale[i])
			continue
		}
		c.stale, c.listed = false, false
		c.hinted = len(c.queues)
		l.updateHints(begin, c)
		end := l.now()
		l.bills.request(c.inbox, end.Sub(begin))
		begin = end
	}
	clear(l.stale[len(later):])
	l.stale = later
}

// updateHints reports the effective hint of every queue of a client to the engine.
func (l *Loop) updateHints(now model.Time, c *Client) {
	c.touch()
	base := c.hints.ForEngine()
	l.engine.SetHint(now, c.PID, base)
	for _, q := range c.queues {
		if q.host != nil {
			continue
		}
		if own := c.hints.EffectiveForEngine(&q.hints); own != base {
			l.engine.SetQueueHint(now, q.id, own)
		}
	}
	l.updateLevels(c)
}

// requestPolicy changes the policy on request of a program, if the daemon is private.
func (l *Loop) requestPolicy(c *Client, name string) {
	if !l.cfg.Private {
		l.log.Info("policy request ignored: the daemon is not private", "pid", c.PID, "user", c.User, "policy", name)
		return
	}
	if err := l.engine.SetPolicy(name); err != nil {
		l.log.Warn("policy request refused", "pid", c.PID, "policy", name, "err", err)
		return
	}
	l.publishConfig()
	l.log.Info("policy changed", "policy", name, "pid", c.PID)
	l.dirty = true
}

// queueCapability returns what the drivers can do to a queue. Streams of one process share its
// hardware queues, so only the gate preempts them separately.
func (c *Client) queueCapability(q *queue) driver.Capability {
	can := c.deviceCapability(q.device)
	if (c.hints.Streams > 0 || c.hints.Hint.PerQueue || c.hasQueueHints(q.device)) && can.MaxLevel > model.LevelBlock {
		can.MaxLevel = model.LevelBlock
		can.Reason = "the queues of this process are scheduled one by one, which only level 1 supports"
	}
	return can
}

// hasQueueHints reports whether a control client has set a hint for one of several queues of a
// client on a device.
func (c *Client) hasQueueHints(gpu model.DeviceID) bool {
	return c.onGPU[gpu] > 1 && c.separate[gpu] > 0 // a single queue has the hardware queues to itself
}

// countSeparate counts the queues for which a control client has set a hint.
func (c *Client) countSeparate(q *queue, had, has bool) {
	if has && !had {
		c.separate[q.device]++
	} else if had && !has {
		if c.separate[q.device]--; c.separate[q.device] == 0 {
			delete(c.separate, q.device)
		}
	}
}

func (l *Loop) setNice(c *Client, nice int) {
	if l.clients[c.ID] == nil || c.hints.Hint.Nice == nice {
		return
	}
	c.hints.Hint.Nice = nice
	l.updateHints(l.now(), c)
}

// EditHint applies an edit and returns the hint in force.
func (l *Loop) EditHint(ctx context.Context, e HintEdit) (hint model.Hint, err error) {
	found := e.Queue == nil
	err = l.edit(ctx, e.PID, func(c *Client) error {
		if e.Queue == nil {
			if hint, err = c.hints.EditProcess(&e); err == nil {
				l.updateHints(l.now(), c)
			}
			return err
		}
		q := c.queues[*e.Queue]
		if q == nil || q.host != nil {
			return nil
		}
		found = true
		had := q.hints.Separate()
		if hint, err = c.hints.EditQueue(&q.hints, &e); err == nil {
			c.countSeparate(q, had, q.hints.Separate())
			l.engine.SetQueueHint(l.now(), q.id, c.hints.EffectiveForEngine(&q.hints))
			l.updateLevels(c) // separate queues only support level 1
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
		if l.clients[c.ID] == c {
			l.setTerms(l.now(), c, t)
		}
	})
}

// Reconfigure applies a configuration between two decisions: limits, the terms of clients by session,
// and what f changes in the engine.
func (l *Loop) Reconfigure(ctx context.Context, limits Limits, terms map[model.SessionID]Terms, f func(e *engine.Engine)) error {
	return l.call(ctx, func() {
		now := l.now()
		l.sample(now)
		l.Book.Replace(limits)
		for _, c := range l.clients {
			t, ok := terms[c.ID]
			if !ok {
				t = c.hints.Terms
			}
			l.setTerms(now, c, t)
		}
		f(l.engine)
		l.publishConfig()
		l.dirty = true
	})
}

// SetAllTerms changes the terms of clients by session, between two decisions.
func (l *Loop) SetAllTerms(ctx context.Context, terms map[model.SessionID]Terms) error {
	return l.call(ctx, func() {
		now := l.now()
		for id, t := range terms {
			if c := l.clients[id]; c != nil {
				l.setTerms(now, c, t)
			}
		}
		l.dirty = true
	})
}

// setTerms replaces what the configuration gives to a client. Without a change of hint or limit the
// engine is not notified.
func (l *Loop) setTerms(now model.Time, c *Client, t Terms) {
	changed := c.hints.SetTerms(t)
	c.touch()
	if changed {
		l.updateHints(now, c)
	}
	l.regroup(now, c)
}
