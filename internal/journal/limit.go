// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"cmp"
	"slices"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// Rates of one account in entries per second, beyond a burst. The administrator's is higher.
const (
	userRate, userBurst   = 2, 40
	adminRate, adminBurst = 100, 2000
	maxAccounts           = 1024
	suppressedPeriod      = 10 * time.Second
)

// account limits the entries that a user causes.
type account struct {
	user       identity.User // the last one of the account
	tokens     float64
	at         time.Time
	suppressed uint64
}

// allow takes a token of a user's account. Preconditions: j.mu is held.
func (j *Journal) allow(now time.Time, user identity.User) bool {
	rate, burst := float64(userRate), float64(userBurst)
	if j.o.Admin(user) {
		rate, burst = adminRate, adminBurst
	}
	key := user.Account()
	a := j.users[key]
	if a == nil {
		if len(j.users) >= maxAccounts {
			key = identity.Nobody // all further ones share an account
			a = j.users[key]
		}
		if a == nil {
			a = &account{tokens: burst, at: now}
			j.users[key] = a
		}
	}
	a.user = user
	a.tokens = min(burst, a.tokens+rate*max(0, now.Sub(a.at).Seconds()))
	a.at = now
	if a.tokens < 1 {
		a.suppressed++
		return false
	}
	a.tokens--
	return true
}

// Report adds an entry for each user with suppressed entries, and forgets users that are within their
// rates. The caller calls it every suppressedPeriod, and at the end.
func (j *Journal) Report() {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.o.Clock()
	var noisy []*account
	for key, a := range j.users {
		if a.suppressed > 0 {
			noisy = append(noisy, a)
		} else if now.Sub(a.at) > time.Minute {
			delete(j.users, key)
		}
	}
	slices.SortFunc(noisy, func(a, b *account) int {
		return cmp.Or(cmp.Compare(a.user.UID, b.user.UID), cmp.Compare(a.user.Key(), b.user.Key()))
	})
	for _, a := range noisy {
		j.add(Entry{Time: now, Kind: control.JournalSuppressed, By: Program{User: a.user}, Count: a.suppressed}, a.user)
		a.suppressed = 0
	}
}

// ReportPeriod is the time between two calls of Report.
const ReportPeriod = suppressedPeriod
