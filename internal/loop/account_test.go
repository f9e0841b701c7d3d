// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/identity"
)

// A user who rings constantly gets a quarter of the loop's time in the long run, whatever one ring
// costs.
func TestShareOfTheLoop(t *testing.T) {
	const windows = 10000
	for _, cost := range []time.Duration{time.Microsecond, 20 * time.Microsecond, 200 * time.Microsecond, 2 * time.Millisecond} {
		a := &account{}
		var spent time.Duration
		heard := 0
		for w := uint64(1); w <= windows; w++ {
			for range 2 * paceWindow / min(cost, paceWindow) { // more than fits
				if a.admit(w) {
					a.spend(cost)
					spent += cost
					heard++
				}
			}
		}
		share := float64(spent) / float64(windows*paceWindow)
		t.Logf("rings of %v: %d heard, %.3f of the time", cost, heard, share)
		// What one ring costs beyond paceDebt is not remembered.
		most := 0.25 * max(1, float64(cost)/float64(paceDebt)) * 1.2
		if share > most || share < 0.2 {
			t.Errorf("rings of %v take %.3f of the loop, want at most %.3f and a quarter at least nearly", cost, share, most)
		}
	}
}

// The account of a user outlives each request by a while, also if another user's request comes in
// between. Otherwise requests one after another would never be paced.
func TestAccountOutlivesRequests(t *testing.T) {
	m, user, other := newMailbox(), identity.OnHost(1000), identity.OnHost(1001)
	b := m.open(user)
	b.account.spend(paceDebt)
	b.done()
	b.unused.Store(int64(clock.Now().Add(time.Hour))) // however slow this test is
	m.close(m.open(other))
	again := m.open(user)
	if again != b || again.account.spent != paceDebt {
		t.Errorf("the account is forgotten: it has %v of %v", again.account.spent, paceDebt)
	}
	again.done()
	again.unused.Store(int64(clock.Now().Add(-2 * inboxAge)))
	m.close(m.open(other))
	if _, known := m.byUser[user]; known {
		t.Error("the account of a user without requests is kept")
	}
}
