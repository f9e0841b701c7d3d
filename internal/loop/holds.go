// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"

	"xsched/internal/clock"
	"xsched/internal/model"
)

// This file suspends clients whatever the policy says: one client by hand, or those of a group of pods
// together with the group's programs on other nodes. Each is apart from the other.

// HeldGroups are the groups of pods that are held, with the highest priority that the hold is for.
type HeldGroups map[string]model.Priority

// holds are the suspensions that no policy decides.
type holds struct {
	engine   *input
	registry *registry
	dispatch *dispatcher
	groups   HeldGroups
}

// hold is whether a client is suspended whatever the policy says.
type hold struct{ byHand, byGroup bool }

// stopped reports whether a client is suspended whatever the policy says.
func (c *Client) stopped() bool { return c.hold.byHand || c.hold.byGroup }

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

// regroup suspends or resumes a client after its group, its grant or the groups that are held changed.
func (h *holds) regroup(now model.Time, c *Client) {
	g := &c.hints.Terms.Grant
	most, held := h.groups[g.Group]
	held = held && g.Group != "" && g.Priority() <= most
	if c.hold.byGroup != held {
		c.hold.byGroup = held
		c.touch()
		h.stop(now, c)
	}
}

// stop tells the engine whether a client is suspended whatever the policy says.
func (h *holds) stop(now model.Time, c *Client) {
	h.engine.SetHeld(now, c.PID, h.registry.heldBy(c.PID) != 0)
	for _, q := range c.queues {
		if q.unproved != "" && q.merge.primary == nil {
			h.dispatch.setUnproved(now, c, q)
		}
	}
	h.engine.dirty = true
}

// Held reports whether a client is suspended by hand.
func (l *Loop) Held(ctx context.Context, c *Client) (held bool, err error) {
	err = l.call(ctx, func() { held = c.hold.byHand })
	return held, err
}
