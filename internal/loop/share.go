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

// sample adds the total so far, and reports whether the share changed.
func (r *recentUse) sample(now model.Time, total time.Duration) bool {
	r.at[r.next], r.total[r.next] = now, total
	r.next = (r.next + 1) % shareSamples
	first := r.next
	for r.at[first] == 0 { // not all slots are in use yet
		first = (first + 1) % shareSamples
	}
	was := r.share
	r.share = 0
	if elapsed := now.Sub(r.at[first]); elapsed > 0 {
		r.share = min(max(0, float64(total-r.total[first])/float64(elapsed)), 1)
	}
	return r.share != was
}

// due reports that it is time for a sample.
func (r *recentUse) due(now model.Time) bool {
	return now >= r.at[(r.next+shareSamples-1)%shareSamples].Add(shareStep)
}

// advance updates the shares of the GPUs. It reports whether one changed.
func (g gpuTimes) advance(now model.Time) (changed bool) {
	for _, t := range g {
		if t.recent.due(now) && t.recent.sample(now, t.use.upTo(now)) {
			changed = true
		}
	}
	return changed
}

// GPUShare is the share of the last second during which a client used a GPU.
type GPUShare struct {
	Device model.DeviceID
	Share  float64
}

// updateShares updates the shares of a client.
func (c *Client) updateShares(now model.Time) {
	if !c.uses.advance(now) {
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
