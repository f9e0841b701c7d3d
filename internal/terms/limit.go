// SPDX-License-Identifier: Apache-2.0

package terms

import (
	"fmt"
	"sync/atomic"

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

// Book has the limits in force. Any goroutine may read it.
type Book struct {
	root   bool
	limits atomic.Pointer[Limits]
}

// NewBook returns the book of a daemon that runs with this uid. Only a daemon of root has limits.
func NewBook(uid int, limits Limits) *Book {
	b := &Book{root: uid == 0}
	b.Replace(limits)
	return b
}

// Replace changes the limits.
func (b *Book) Replace(limits Limits) { b.limits.Store(&limits) }

// LimitOf returns the administrator's limit of a user, whose process has these groups. Root has none.
func (b *Book) LimitOf(user identity.User, groups []int) Limit {
	if !b.root || user.Root() {
		return Limit{Priority: model.PriorityMax}
	}
	return b.limits.Load().of(user, groups)
}

// Cap returns the limit of a user's rank. The zero value means no limit.
func (b *Book) Cap(user identity.User, groups []int) model.Cap {
	if p := b.LimitOf(user, groups).Priority; p != model.PriorityMax {
		return model.Cap{On: true, Priority: p}
	}
	return model.Cap{}
}

// MayHave returns why a user, whose process has these groups, may not set hints; empty: the user may.
func (b *Book) MayHave(user identity.User, groups []int, change *model.HintChange) string {
	p, said := change.Top()
	if limit := b.Cap(user, groups); said && limit.On && p > limit.Priority {
		return refused(user, p, limit)
	}
	var h model.Hint
	change.Apply(&h)
	if most := b.LimitOf(user, groups).Share; most != 0 && h.Utilization > most {
		return fmt.Sprintf("share %d was requested: the limit of %v is %d", h.Utilization, user, most)
	}
	return ""
}

func refused(user identity.User, p model.Priority, limit model.Cap) string {
	return fmt.Sprintf("priority %d was requested: the limit of %v is %d", p, user, limit.Priority)
}
