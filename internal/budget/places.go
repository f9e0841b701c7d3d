// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"sync"

	"xsched/internal/identity"
)

// Places limits how many of something accounts have at once: each at most Each, and no more than are
// free, so that whatever number of accounts take as many as they can, the next one finds a place.
type Places struct {
	All, Each int

	mu    sync.Mutex
	taken int
	of    map[identity.User]int // by identity.User.Account
}

// Take takes a place, unless the account has its limit already. The last place is the administrator's.
func (p *Places) Take(user identity.User) bool {
	user = user.Account()
	p.mu.Lock()
	defer p.mu.Unlock()
	n, free := p.of[user], p.All-p.taken
	if free <= 0 || n >= p.Each || n >= free-1 && !user.Root() {
		return false
	}
	if p.of == nil {
		p.of = map[identity.User]int{}
	}
	p.taken++
	p.of[user]++
	return true
}

// Give returns a place.
func (p *Places) Give(user identity.User) {
	user = user.Account()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.of[user]--; p.of[user] <= 0 {
		delete(p.of, user)
	}
}
