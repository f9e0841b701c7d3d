// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"testing/synctest"
	"time"
)

// A part that beats lives; one that is stuck looks dead after its limit, and lives again when it
// goes on. A part that waits for work is never late.
func TestPartsThatStopLookDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Monitor
		var age time.Duration
		m.Watch("loop", time.Second, true, func() time.Duration { return age })
		periodic := m.Add("scan", 10*time.Second, true)
		onDemand := m.Add("log", 5*time.Second, false)
		onDemand.End()
		late := func() (names string) {
			for _, s := range m.States() {
				if s.Late() {
					names += s.Name + " "
				}
			}
			return names
		}
		want := func(names string, alive bool) {
			t.Helper()
			if late() != names || m.Alive() != alive {
				t.Errorf("late: %q, alive %v; want %q, %v", late(), m.Alive(), names, alive)
			}
		}
		for range 100 {
			time.Sleep(9 * time.Second)
			periodic.Beat()
		}
		want("", true)
		time.Sleep(10*time.Second + 1)
		want("scan ", false)
		onDemand.Begin()
		time.Sleep(6 * time.Second)
		want("scan log ", false)
		periodic.Beat()
		want("log ", true) // a restart would not help
		onDemand.End()
		age = 2 * time.Second
		want("loop ", false)
		var none *Part
		none.Beat()
		none.Begin()
		none.End()
	})
}
