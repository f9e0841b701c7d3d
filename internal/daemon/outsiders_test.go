// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"
)

// Scanning thousands of processes uses at most a twentieth of one CPU.
func TestScanShare(t *testing.T) {
	for looked := time.Millisecond; looked <= time.Second; looked += time.Millisecond {
		if wait := untilNextLook(looked); wait < outsiderShare*looked || wait < outsiderPeriod {
			t.Fatalf("a look of %v, then %v", looked, wait)
		}
	}
	if wait := untilNextLook(time.Minute); wait != outsiderPeriodMost {
		t.Errorf("an unmanaged program is seen only after %v", wait)
	}
}
