// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"cmp"
	"slices"
	"time"

	"xsched/internal/model"
)

// This file computes shares of the last second, from samples of the total times.
const (
	shareStep    = 250 * time.Millisecond
	shareSamples = 5 // the first and the last are a second apart
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

// sampleGPUs begins a step when it is time to, and updates the shares of the GPUs. Clients follow in the
// same pass: shares of the same time add up.
func (l *Loop) sampleGPUs(now model.Time) {
	if now < l.shareStep.Add(shareStep) {
		return
	}
	l.shareStep = now
	for _, t := range l.gpus {
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

// updateShares updates the shares of a client once per step.
func (c *Client) updateShares(now, step model.Time, gpus gpuTimes) {
	changed := false
	for id, t := range c.uses {
		if !t.recent.due(step) {
			continue
		}
		total := t.use.total
		if gpu := gpus[id]; gpu != nil { // nil: no client has queues there
			total = t.use.upTo(gpu.turns.at(now))
		}
		changed = t.recent.sample(now, total) || changed
	}
	if !changed {
		return
	}
	c.shares = nil
	for id, t := range c.uses {
		if t.recent.share > 0 {
			c.shares = append(c.shares, GPUShare{id, t.recent.share})
		}
	}
	slices.SortFunc(c.shares, func(a, b GPUShare) int { return cmp.Compare(a.Device, b.Device) })
	c.touch()
}

// GPUView is how much a GPU is used.
type GPUView struct {
	Busy  time.Duration // at least one queue used it
	Share float64       // of the last second
}
