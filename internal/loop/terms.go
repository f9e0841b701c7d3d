// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"slices"

	"xsched/internal/engine"
	"xsched/internal/model"
)

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

// Kept is what control clients have set for a process, for the next daemon.
type Kept struct {
	Set     model.HintChange // process-wide hints
	Pinned  model.HintChange // the administrator's part; see Client.pinned
	Ceiling *model.Priority
	Granted model.Priority
	Held    bool
}

// Empty reports whether nothing is kept.
func (k *Kept) Empty() bool {
	return k.Set.Empty() && k.Pinned.Empty() && k.Ceiling == nil && k.Granted <= model.PriorityDefault && !k.Held
}

// begin sets the initial hint: that of the program over that of the rule, and over both what control
// clients set under a previous daemon.
func (c *Client) begin(o *ClientOptions) {
	c.terms, c.said, c.set = o.Terms, o.Said, o.Kept.Set
	c.pinned, c.ceiling = o.Kept.Pinned, o.Kept.Ceiling
	c.fix()
	c.granted = max(c.granted, o.Kept.Granted)
	c.held = c.held || o.Kept.Held
	c.compose()
}

func (c *Client) groups() []int {
	if c.Program == nil {
		return nil
	}
	return c.Program.Groups
}

// Kept returns what control clients have set for a process.
func (l *Loop) Kept(ctx context.Context, pid int) (Kept, error) {
	var out Kept
	err := l.edit(ctx, pid, func(c *Client) error {
		out = Kept{Set: c.set, Pinned: c.pinned, Ceiling: c.ceiling, Granted: c.granted, Held: c.held}
		return nil
	})
	return out, err
}

// Identities returns the clients that have joined.
func (l *Loop) Identities(ctx context.Context) ([]Identity, error) {
	var out []Identity
	err := l.call(ctx, func() {
		out = slices.Grow(out, len(l.clients))
		for _, c := range l.clients {
			out = append(out, c.Identity)
		}
	})
	return out, err
}

// SetTerms changes the terms of a client.
func (l *Loop) SetTerms(ctx context.Context, c *Client, t Terms) error {
	return l.post(c.on(ctx), func() {
		if l.clients[c.ID] == c {
			l.setTerms(l.now(), c, t)
		}
	})
}

// Reconfigure applies a configuration between two decisions: limits, the terms of clients by session,
// and what f changes in the engine.
func (l *Loop) Reconfigure(ctx context.Context, limits Limits, terms map[model.SessionID]Terms, f func(e *engine.Engine)) error {
	return l.call(ctx, func() {
		now := l.now()
		l.sample(now)
		l.limits.Store(&limits)
		for _, c := range l.clients {
			t, ok := terms[c.ID]
			if !ok {
				t = c.terms
			}
			l.setTerms(now, c, t)
		}
		f(l.engine)
		l.publishConfig()
		l.dirty = true
	})
}

// SetAllTerms changes the terms of clients by session, between two decisions.
func (l *Loop) SetAllTerms(ctx context.Context, terms map[model.SessionID]Terms) error {
	return l.call(ctx, func() {
		now := l.now()
		for id, t := range terms {
			if c := l.clients[id]; c != nil {
				l.setTerms(now, c, t)
			}
		}
		l.dirty = true
	})
}

// setTerms replaces what the configuration gives to a client. Without a change of hint or limit the
// engine is not told.
func (l *Loop) setTerms(now model.Time, c *Client, t Terms) {
	if t.Number < c.terms.Number {
		t = c.terms
	}
	before, share, owner, pool, devices := c.hint, c.terms.Grant.Share, c.terms.Grant.Owner, c.pool(), c.terms.Grant.Devices
	c.terms = t
	c.fix()
	c.compose()
	c.priorityNote = ""
	if !c.Attached || t.limits() {
		l.limitShare(c, &c.hint)
		c.priorityNote = l.limit(c, c.granted, &c.hint)
	}
	c.touch()
	if c.hint != before || l.capOf(c, c.granted) != c.toldCap || c.terms.Grant.Share != share || c.terms.Grant.Owner != owner || c.pool() != pool ||
		!slices.Equal(c.terms.Grant.Devices, devices) {
		l.updateHints(now, c)
	}
	l.regroup(now, c)
}

// compose derives the hint from its sources.
func (c *Client) compose() {
	c.terms.Hint.Complete(&c.hint, &c.said, &c.set)
	c.said.Apply(&c.hint)
	c.set.Apply(&c.hint)
	c.fixed.Apply(&c.hint)
}
