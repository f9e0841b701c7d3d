// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/model"
)

// HeldGroups are the groups of pods that are held, with the highest priority that the hold is for.
type HeldGroups map[string]model.Priority

// holds suspends clients whatever the policy says: one client by hand, or those of a group of pods
// at the same time as the group's programs on other nodes. Both are independent.
type holds struct {
	engine   *input
	registry *registry
	dispatch *dispatcher
	groups   HeldGroups
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

// stop notifies the engine whether a client is suspended whatever the policy says.
func (h *holds) stop(now model.Time, c *Client) {
	h.engine.SetHeld(now, c.PID, h.registry.heldBy(c.PID) != 0)
	for _, q := range c.queues {
		if q.unproved != "" && q.merge.primary == nil {
			h.dispatch.setUnproved(now, c, q)
		}
	}
	h.engine.dirty = true
}
