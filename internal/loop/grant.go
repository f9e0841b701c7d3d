// SPDX-License-Identifier: Apache-2.0

package loop

import "xsched/internal/model"

// Grant is what the administrator of a cluster set for the pod of a client. The zero value is none. It
// binds as Pin does, but changes and ends with the pod's grants.
type Grant struct {
	Ceiling *model.Priority  // highest priority, whatever the limit of the user is; nil: that limit
	Share   int              // largest share in percent; 0: the user's limit, as best effort if there is a ceiling
	Pool    string           // has Share together; empty: each program has its own
	Pinned  model.HintChange // hints that the program and its user can't change
	// Owner owns the gang of the program instead of its user; empty: the user does.
	Owner string
	// Group is the group of pods on all nodes, "namespace/group"; empty: none.
	Group string
}

// priority is the granted one.
func (g *Grant) priority() model.Priority {
	if g.Ceiling == nil {
		return model.PriorityDefault
	}
	return *g.Ceiling
}

// limits reports whether the terms bind a client that an authorised caller attached.
func (t *Terms) limits() bool {
	return t.Rule != "" || t.Grant.Ceiling != nil || t.Grant.Share != 0
}

// fix combines what the administrator has set for the process with the grant of its pod.
func (c *Client) fix() {
	c.fixed = c.terms.Grant.Pinned
	c.fixed.Merge(&c.pinned)
}

// highest returns the highest priority that the client's user can set; nil: the user's own limit.
func (c *Client) highest() *model.Priority {
	if c.ceiling != nil {
		return c.ceiling
	}
	return c.terms.Grant.Ceiling
}

// pool names those who have one share together. Without a share, a granted program is best effort. Empty:
// it has no grant, or the administrator gave the process its own share.
func (c *Client) pool() string {
	switch g := &c.terms.Grant; {
	case c.pinned.Has("utilization"):
		return ""
	case g.Share != 0:
		return g.Pool
	case g.Ceiling != nil:
		return model.PoolBestEffort
	}
	return ""
}

// exceeds reports that a hint has a larger share than the grant.
func (c *Client) exceeds(h *model.Hint) bool {
	most := c.terms.Grant.Share
	return most != 0 && h.Utilization > most && !c.pinned.Has("utilization")
}
