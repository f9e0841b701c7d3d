// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"cmp"
	"context"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// This file suspends clients whatever the policy says: one client by hand, or those of a group of pods
// together with the group's programs on other nodes. Each is apart from the other.

// HeldGroups are the groups of pods that are held, with the highest priority that the hold is for.
type HeldGroups map[string]model.Priority

// stopped reports whether a client is suspended whatever the policy says.
func (c *Client) stopped() bool { return c.held || c.grouped }

// heldBy returns why a process is suspended whatever the policy says: any of its clients is. 0: it is not.
func (l *Loop) heldBy(pid int) int {
	by := 0
	for _, c := range l.byPID[pid] {
		switch {
		case c.held:
			return ByHand
		case c.grouped:
			by = ByGroup
		}
	}
	return by
}

// traced accounts a transition and passes it on. The engine takes all suspensions that no policy decides for
// those by hand.
func (l *Loop) traced(t engine.Transition) {
	if t.By == ByHand {
		t.By = cmp.Or(l.heldBy(t.PID), ByHand)
	}
	l.accountYield(t)
	if l.cfg.Trace != nil {
		l.cfg.Trace.Put(t)
	}
}

// SetHeld suspends or resumes a process on request of a control client.
func (l *Loop) SetHeld(ctx context.Context, pid int, held bool) error {
	return l.edit(ctx, pid, func(c *Client) error {
		c.held = held
		l.stop(l.now(), c)
		return nil
	})
}

// HoldGroups replaces the groups that are held. The loop only reads the map.
func (l *Loop) HoldGroups(ctx context.Context, groups HeldGroups) error {
	return l.call(ctx, func() {
		l.groups = groups
		now := l.now()
		for _, c := range l.clients {
			l.regroup(now, c)
		}
	})
}

// regroup suspends or resumes a client after its group, its grant or the groups that are held changed.
func (l *Loop) regroup(now model.Time, c *Client) {
	g := &c.hints.Terms.Grant
	most, held := l.groups[g.Group]
	held = held && g.Group != "" && g.Priority() <= most
	if c.grouped != held {
		c.grouped = held
		c.touch()
		l.stop(now, c)
	}
}

// stop tells the engine whether a client is suspended whatever the policy says.
func (l *Loop) stop(now model.Time, c *Client) {
	l.engine.SetHeld(now, c.PID, l.heldBy(c.PID) != 0)
	for _, q := range c.queues {
		if q.unproved != "" && q.host == nil {
			l.setUnproved(now, c, q)
		}
	}
	l.dirty = true
}

// Held reports whether a client is suspended by hand.
func (l *Loop) Held(ctx context.Context, c *Client) (held bool, err error) {
	err = l.call(ctx, func() { held = c.held })
	return held, err
}
