// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"log/slog"

	"xsched/internal/clock"
	"xsched/internal/model"
	"xsched/internal/terms"
)

// Types of package terms that requests to the loop use.
type (
	Terms    = terms.Terms
	Grant    = terms.Grant
	Kept     = terms.Kept
	Limit    = terms.Limit
	Limits   = terms.Limits
	HintEdit = terms.Edit
)

// ErrPinned reports a hint that the administrator has set.
var ErrPinned = terms.ErrPinned

// hinter reports hints about a process or one of its queues to the engine. Package terms decides which
// are in force.
type hinter struct {
	engine    *input
	log       *slog.Logger
	registry  *registry
	pace      *pacer
	publisher *publisher
	private   bool // see Config.Private

	waiting []*Client // clients whose hint updates have waited
}

// warn logs that a priority was not granted; empty: it was.
func (h *hinter) warn(c *Client, note string) {
	if note != "" {
		h.log.Warn("priority not granted", "pid", c.PID, "user", c.User, "reason", note)
	}
}

// tick resets the limit of a client. Updates that have waited follow when its user has time.
func (h *hinter) tick(c *Client) {
	c.updates.admitted = 0
	if c.updates.waiting && !c.updates.listed {
		c.updates.listed = true
		h.waiting = append(h.waiting, c)
	}
}

// applyWaiting applies hint updates that have waited, within the users' shares.
func (h *hinter) applyWaiting(now model.Time) {
	if len(h.waiting) == 0 {
		return
	}
	later, begin := h.waiting[:0], now
	for i, c := range h.waiting {
		if c.account == nil || !c.updates.waiting { // it has left, or an update came first
			c.updates.listed = false
			continue
		}
		if begin.Sub(now) >= hintsPerPass || h.pace.shared() && !c.account.within(h.pace.window) {
			later = append(later, h.waiting[i])
			continue
		}
		c.updates.waiting, c.updates.listed = false, false
		c.updates.admitted = len(c.queues)
		h.update(begin, c)
		end := clock.Now()
		h.pace.bills.request(c.inbox, end.Sub(begin))
		begin = end
	}
	clear(h.waiting[len(later):])
	h.waiting = later
}

// update reports the effective hint of every queue of a client to the engine.
func (h *hinter) update(now model.Time, c *Client) {
	c.touch()
	c.page.SetMemoryQuota(c.hints.Hint.Memory)
	c.page.SetMemoryMovable(c.hints.Hint.Movable)
	base := c.hints.ForEngine()
	h.engine.SetHint(now, c.PID, base)
	for _, q := range c.queues {
		if q.merge.primary != nil {
			continue
		}
		if own := c.hints.EffectiveForEngine(&q.hints); own != base {
			h.engine.SetQueueHint(now, q.id, own)
		}
	}
	h.updateLevels(c)
}

// updateLevels resolves the level of every queue of a client.
func (h *hinter) updateLevels(c *Client) {
	now := clock.Now()
	c.touch()
	for _, q := range c.queues {
		if q.merge.primary != nil {
			continue
		}
		can := c.queueCapability(q)
		q.level, _ = can.Resolve(c.hints.Hint.Level)
		h.engine.SetLevel(now, q.id, q.level, c.best(q.device), can.Slices)
	}
	h.engine.dirty = true
}

// requestPolicy changes the policy on request of a program, if the daemon is private.
func (h *hinter) requestPolicy(c *Client, name string) {
	if !h.private {
		h.log.Info("policy request ignored: the daemon is not private", "pid", c.PID, "user", c.User, "policy", name)
		return
	}
	if err := h.engine.SetPolicy(name); err != nil {
		h.log.Warn("policy request refused", "pid", c.PID, "policy", name, "err", err)
		return
	}
	h.publisher.publishConfig()
	h.log.Info("policy changed", "policy", name, "pid", c.PID)
	h.engine.dirty = true
}

func (h *hinter) setNice(c *Client, nice int) {
	if h.registry.clients[c.ID] == nil || c.hints.Hint.Nice == nice {
		return
	}
	c.hints.Hint.Nice = nice
	h.update(clock.Now(), c)
}
