// SPDX-License-Identifier: Apache-2.0

package terms

import (
	"slices"

	"xsched/internal/model"
)

// Grant is what the administrator of a cluster set for the pod of a client. The zero value is none. It
// binds as a pinned hint does, but changes and ends with the pod's grants.
type Grant struct {
	Ceiling *model.Priority  // highest priority, whatever the limit of the user is; nil: that limit
	Share   int              // largest share in percent; 0: the user's limit, as best effort if there is a ceiling
	Pool    string           // name of those who have Share in common; empty: each program has its own
	Pinned  model.HintChange // hints that the program and its user can't change
	// Devices are the GPUs that the pod may use; empty: all. Elsewhere its programs are best effort.
	Devices []model.DeviceID
	// Owner owns the gang of the program instead of its user; empty: the user does.
	Owner string
	// Group is the group of pods on all nodes, "namespace/group"; empty: none.
	Group string
}

// Priority is the granted one.
func (g *Grant) Priority() model.Priority {
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

// Terms are what the configuration gives to a client. A hint of the program or of a control client
// replaces that of the rule.
type Terms struct {
	Rule    string // name; empty: none
	Hint    model.HintChange
	Granted model.Priority // authorised beyond the limit of the user; up to 0: none
	Grant   Grant
	// Number increases with every configuration: older terms never replace newer ones.
	Number uint64
}

// bind reports whether the terms bind a client that an authorised caller attached.
func (t *Terms) bind() bool {
	return t.Rule != "" || t.Grant.Ceiling != nil || t.Grant.Share != 0
}

// Kept is what control clients have set for a process, for the next daemon.
type Kept struct {
	Set     model.HintChange // process-wide hints
	Pinned  model.HintChange // the administrator's part; see Process.pinned
	Ceiling *model.Priority
	Granted model.Priority
	Held    bool
	Evicted map[model.DeviceID]model.Bytes // memory that shall be out by hand
	// Reading orders what was read of a process at different times; 0: before all others.
	Reading uint64
}

// Empty reports whether nothing is kept.
func (k *Kept) Empty() bool {
	return k.Set.Empty() && k.Pinned.Empty() && k.Ceiling == nil && k.Granted <= model.PriorityDefault && !k.Held && len(k.Evicted) == 0
}
