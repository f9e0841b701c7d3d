// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"testing"
	"time"

	"xsched/internal/driver"
	"xsched/internal/identity"
)

// A user's budget persists while any of its processes may draw on it.
func TestBudgetStaysWithItsSessions(t *testing.T) {
	d := &instance{budgets: map[identity.User]*budget{}, filesPerUID: 4}
	old := func() {
		for _, b := range d.budgets {
			b.asked = b.asked.Add(-2 * budgetAge)
		}
	}
	first := d.limits(identity.OnHost(1000))
	open := NewObjects(nil, first, &driver.Metrics{}) // no file received yet
	old()
	_ = d.limits(identity.OnHost(1001))
	if d.limits(identity.OnHost(1000)).Files != first.Files {
		t.Error("the user of an open session got a second share")
	}
	open.Close()
	asked := d.limits(identity.OnHost(1000)) // not used yet
	_ = d.limits(identity.OnHost(1001))
	if d.limits(identity.OnHost(1000)).Files != asked.Files {
		t.Error("a budget was dropped between request and use")
	}
	old()
	_ = d.limits(identity.OnHost(1002))
	if len(d.budgets) != 1 || time.Since(d.budgets[identity.OnHost(1002)].asked) > budgetAge {
		t.Errorf("%d budgets are kept", len(d.budgets))
	}
}
