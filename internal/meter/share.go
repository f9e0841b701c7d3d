// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"cmp"
	"slices"
	"time"

	"xsched/internal/model"
)

// This file computes shares of the last second, from samples of the total times.
const (
	shareStep    = 250 * time.Millisecond
	shareSamples = 5 // from the first to the last is a second
)

// recentUse is the share of the last second during which something was used.
type recentUse struct {
	at    [shareSamples]model.Time
	total [shareSamples]time.Duration
	next  int
	share float64
}

// recentFrom begins to measure. What was before counts as unused.
func recentFrom(now model.Time) recentUse {
	var r recentUse
	for i := range r.at {
		r.at[i] = now
	}
	return r
}

// sample adds the total so far, and reports whether the share changed.
func (r *recentUse) sample(now model.Time, total time.Duration) bool {
	r.at[r.next], r.total[r.next] = now, total
	r.next = (r.next + 1) % shareSamples
	elapsed := max(now.Sub(r.at[r.next]), (shareSamples-1)*shareStep)
	was := r.share
	r.share = min(max(0, float64(total-r.total[r.next])/float64(elapsed)), 1)
	return r.share != was
}

// due reports that there is no sample of the last step, which began at the given time.
func (r *recentUse) due(step model.Time) bool {
	return r.at[(r.next+shareSamples-1)%shareSamples] < step
}

// Step begins a step when it is time to, and updates the shares of the GPUs. Programs follow in the
// same pass: shares of the same time add up.
func (g *Usage) Step(now model.Time) {
	if now < g.step.Add(shareStep) {
		return
	}
	g.step = now
	for _, t := range g.gpus {
		if t.recent.due(now) {
			t.recent.sample(now, t.use.upTo(now))
		}
	}
}

// GPUShare is a client's share of a GPU in the last second. Clients that use the GPU at once have equal
// parts of that time, so the shares of all clients add up to 1 at most.
type GPUShare struct {
	Device model.DeviceID
	Share  float64
}

// Update updates the shares of a program once per step, and reports whether they changed.
func (p *ProgramUse) Update(now model.Time, all *Usage) bool {
	changed := false
	for id, t := range p.uses {
		if !t.recent.due(all.step) {
			continue
		}
		total := t.use.total
		if gpu := all.gpus[id]; gpu != nil { // nil: no client has queues there
			total = t.use.upTo(gpu.turns.at(now))
		}
		changed = t.recent.sample(now, total) || changed
	}
	if !changed {
		return false
	}
	p.Shares = nil
	for id, t := range p.uses {
		if t.recent.share > 0 {
			p.Shares = append(p.Shares, GPUShare{id, t.recent.share})
		}
	}
	slices.SortFunc(p.Shares, func(a, b GPUShare) int { return cmp.Compare(a.Device, b.Device) })
	return true
}

// GPU is how much a GPU is used.
type GPU struct {
	Busy  time.Duration // at least one queue used it
	Share float64       // of the last second
}

// GPUs returns how much each GPU is used.
func (g *Usage) GPUs(now model.Time) map[model.DeviceID]GPU {
	out := make(map[model.DeviceID]GPU, len(g.gpus))
	for id, t := range g.gpus {
		out[id] = GPU{t.use.upTo(now), t.recent.share}
	}
	return out
}
