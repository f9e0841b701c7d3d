// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"slices"

	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/model"
)

// deviceCapability returns what the drivers can do to a client on a device, and the reason for a
// limit.
func (c *Client) deviceCapability(gpu model.DeviceID) driver.Capability {
	if why := c.workers.off[gpu]; why != "" {
		return driver.Capability{MaxLevel: model.LevelBlock, Reason: why}
	}
	if can, ok := c.caps[gpu]; ok {
		return can
	}
	why, _ := c.session.Hardware().Why()
	return driver.Capability{MaxLevel: model.LevelBlock, Reason: why}
}

// best returns the highest level that the drivers support for a client on a device.
func (c *Client) best(gpu model.DeviceID) model.Level {
	level, _ := c.deviceCapability(gpu).Resolve(model.LevelAuto)
	return level
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
	return c.counts.queues[gpu] > 1 && c.counts.separate[gpu] > 0 // a single queue has the hardware queues to itself
}

// inForce returns the level of a queue, and the reason if it is not the highest or not the requested
// one. It is computed anew: the mode may override the hint, and the reason may have changed.
func (c *Client) inForce(cfg *engine.Config, q *queue) (model.Level, string) {
	want := c.hints.Hint.Level
	if cfg := cfg.On(q.device); cfg.Mode == model.ModeLevel {
		want = cfg.ForceLevel
	}
	level, reason := c.queueCapability(q).Resolve(want)
	switch {
	case c.workers.off[q.device] != "":
	case q.unproved != "":
		reason = q.unproved
	case c.Attached && level == model.LevelBlock:
		reason = "the process has no shim that holds launches: level 1 has no effect"
	case q.guessed() && level == model.LevelBlock:
		reason = "the runtime is not hooked, so no gate holds launches: level 1 has no effect"
	}
	return level, reason
}

// route returns the mechanism that preempts a queue at a level.
func (c *Client) route(q *queue, level model.Level) string {
	if level <= model.LevelBlock {
		return "gate"
	}
	return c.caps[q.device].Route
}

// claim judges a client's claim to use a GPU. Without a judge nothing is known about it.
func (c *Client) claim(gpu model.DeviceID) driver.Claim {
	if j, ok := c.session.Hardware().(driver.Claimer); ok {
		return j.Claim(gpu)
	}
	return driver.ClaimUnlisted
}

// ungranted returns the GPUs that a client uses without a grant, in order.
func (c *Client) ungranted() []model.DeviceID {
	var out []model.DeviceID
	for gpu := range c.counts.queues {
		if !c.hints.Terms.Grant.Allows(gpu) {
			out = append(out, gpu)
		}
	}
	slices.Sort(out)
	return out
}

// countSeparate counts the queues for which a control client has set a hint.
func (c *Client) countSeparate(q *queue, had, has bool) {
	if has && !had {
		c.counts.separate[q.device]++
	} else if had && !has {
		if c.counts.separate[q.device]--; c.counts.separate[q.device] == 0 {
			delete(c.counts.separate, q.device)
		}
	}
}
