// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"fmt"

	"xsched/internal/identity"
	"xsched/internal/model"
)

// Limit is the administrator's limit of a user's programs.
type Limit struct {
	Priority model.Priority // highest rank; model.PriorityMax: no limit
	Share    int            // largest share in percent; 0: no limit
}

// Limits are the limits of a root daemon's users. The entry of the uid counts first, then the highest
// of the process's groups, then Others.
type Limits struct {
	Users, Groups map[int]Limit
	Others        Limit
}

// of returns the limit of a user. Root of a container can take any group, so groups count on the host
// only.
func (s *Limits) of(user identity.User, groups []int) Limit {
	account := user.Account()
	limit, known := s.Users[account.UID]
	if user.Host() && !known {
		for _, gid := range groups {
			if g, ok := s.Groups[gid]; ok && known {
				limit = limit.atLeast(g)
			} else if ok {
				limit, known = g, true
			}
		}
	}
	switch {
	case !known, account.UID == 0: // the account of a container has uid 0
		return s.Others
	case !account.Host(): // a uid in a sandbox may be its own, or one that root of a container took
		return Limit{min(limit.Priority, s.Others.Priority), lowerShare(limit.Share, s.Others.Share)}
	}
	return limit
}

// atLeast returns the more generous of two limits, per field.
func (l Limit) atLeast(o Limit) Limit {
	if l.Share != 0 && (o.Share == 0 || o.Share > l.Share) {
		l.Share = o.Share
	}
	l.Priority = max(l.Priority, o.Priority)
	return l
}

func lowerShare(a, b int) int {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// LimitOf returns the administrator's limit of a user, whose process has these groups. Only a daemon of
// root has limits, and root has none.
func (l *Loop) LimitOf(user identity.User, groups []int) Limit {
	if l.cfg.UID != 0 || user.Root() {
		return Limit{Priority: model.PriorityMax}
	}
	return l.limits.Load().of(user, groups)
}

// Cap returns the limit of a user's rank. The zero value means no limit.
func (l *Loop) Cap(user identity.User, groups []int) model.Cap {
	if p := l.LimitOf(user, groups).Priority; p != model.PriorityMax {
		return model.Cap{On: true, Priority: p}
	}
	return model.Cap{}
}

// capOf returns the limit of a client: that of its user, or a higher priority that an authorised
// caller or a rule granted. What the administrator set for this process goes before a grant of its
// pod, and that before the rule.
func (l *Loop) capOf(c *Client, granted model.Priority) model.Cap {
	limit := l.Cap(c.User, c.groups())
	if c.ceiling != nil && granted <= max(*c.ceiling, model.PriorityDefault) {
		return model.Cap{On: true, Priority: *c.ceiling}
	}
	if top := c.terms.Grant.Ceiling; top != nil {
		return model.Cap{On: *top != model.PriorityMax, Priority: *top}
	}
	if !limit.On {
		return limit
	}
	if granted = max(granted, c.terms.Granted); granted > max(limit.Priority, model.PriorityDefault) {
		limit.Priority = granted
	}
	if limit.Priority == model.PriorityMax {
		return model.Cap{}
	}
	return limit
}

// userKey names the user of a client for the engine. Limits apply to all users of one account.
func (c *Client) userKey() string { return c.User.Account().Key() }

// MayHave returns why a user, whose process has these groups, may not set hints; empty: the user may.
func (l *Loop) MayHave(user identity.User, groups []int, change *model.HintChange) string {
	p, said := change.Top()
	if limit := l.Cap(user, groups); said && limit.On && p > limit.Priority {
		return refused(user, p, limit)
	}
	var h model.Hint
	change.Apply(&h)
	if most := l.LimitOf(user, groups).Share; most != 0 && h.Utilization > most {
		return fmt.Sprintf("share %d was requested: the limit of %v is %d", h.Utilization, user, most)
	}
	return ""
}

// limitShare limits the share of a hint to that of the client's user, unless the administrator has set
// it. A program without a share has the largest one.
func (l *Loop) limitShare(c *Client, hint *model.Hint) {
	most := c.terms.Grant.Share
	if most == 0 {
		most = l.LimitOf(c.User, c.groups()).Share
	}
	if most != 0 && (hint.Utilization == 0 || hint.Utilization > most) && !c.pinned.Has("utilization") {
		hint.Utilization = most
	}
}

func refused(user identity.User, p model.Priority, limit model.Cap) string {
	return fmt.Sprintf("priority %d was requested: the limit of %v is %d", p, user, limit.Priority)
}
