// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"fmt"

	"xsched/internal/identity"
	"xsched/internal/model"
)

// OtherUsers stands for all users without an entry in Config.MaxPriority.
const OtherUsers = -1

// Cap returns the administrator's limit of a user. Only a daemon of root has limits, and root has
// none. The zero value means no limit.
func (l *Loop) Cap(user identity.User) model.Cap {
	if l.cfg.UID != 0 || user.Root() {
		return model.Cap{}
	}
	account := user.Account()
	limit, known := l.cfg.MaxPriority[account.UID]
	switch others := l.cfg.MaxPriority[OtherUsers]; {
	case !known, account.UID == 0: // the account of a container has uid 0
		limit = others
	case !account.Host(): // a uid in a sandbox may be its own, or one that root of a container took
		limit = min(limit, others)
	}
	if limit == model.PriorityMax {
		return model.Cap{}
	}
	return model.Cap{On: true, Priority: limit}
}

// capOf returns the limit of a client: that of its user, or a higher priority that an authorised
// caller granted.
func (l *Loop) capOf(c *Client, granted model.Priority) model.Cap {
	limit := l.Cap(c.User)
	if c.ceiling != nil && granted <= max(*c.ceiling, model.PriorityDefault) {
		return model.Cap{On: true, Priority: *c.ceiling}
	}
	if !limit.On {
		return limit
	}
	if granted > max(limit.Priority, model.PriorityDefault) {
		limit.Priority = granted
	}
	if limit.Priority == model.PriorityMax {
		return model.Cap{}
	}
	return limit
}

// userKey names the user of a client for the engine. Limits apply to all users of one account.
func (c *Client) userKey() string { return c.User.Account().Key() }

// MayHave returns why a user may not have a priority; empty: the user may.
func (l *Loop) MayHave(user identity.User, p model.Priority) string {
	if limit := l.Cap(user); limit.On && p > limit.Priority {
		return refused(user, p, limit)
	}
	return ""
}

func refused(user identity.User, p model.Priority, limit model.Cap) string {
	return fmt.Sprintf("priority %d was requested: the limit of %v is %d", p, user, limit.Priority)
}
