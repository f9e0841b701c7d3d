// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"testing"
	"time"
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
