// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"slices"

	"xsched/internal/model"
)

// Grant is what the administrator of a cluster set for the pod of a client. The zero value is none. It
// binds as Pin does, but changes and ends with the pod's grants.
type Grant struct {
	Ceiling *model.Priority  // highest priority, whatever the limit of the user is; nil: that limit
	Share   int              // largest share in percent; 0: the user's limit, as best effort if there is a ceiling
	Pool    string           // has Share together; empty: each program has its own
	Pinned  model.HintChange // hints that the program and its user can't change
	// Devices are the GPUs that the pod may use; empty: all. Elsewhere its programs are best effort.
	Devices []model.DeviceID
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

// Allows reports whether the pod may use a GPU.
func (g *Grant) Allows(gpu model.DeviceID) bool {
	return len(g.Devices) == 0 || slices.Contains(g.Devices, gpu)
}

// lower makes the hint of a queue on a GPU without a grant the least that still runs: after every program that
// was granted the GPU, and without a share of it.
func (g *Grant) lower(gpu model.DeviceID, h *model.Hint) {
	if g.Allows(gpu) {
		return
	}
	least := model.Cap{On: true, Priority: model.PriorityMin}
	h.Priority = min(h.Priority, least.Priority)
	h.LaxPriority, h.CriticalPriority = 0, 0
	h.Utilization, h.SLO, h.Cap, h.Pool = 0, model.SLO{}, least, model.PoolBestEffort
}

// ungranted returns the GPUs that a client uses without a grant, in order.
func (c *Client) ungranted() []model.DeviceID {
	var out []model.DeviceID
	for gpu := range c.onGPU {
		if !c.terms.Grant.Allows(gpu) {
			out = append(out, gpu)
		}
	}
	slices.Sort(out)
	return out
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
