// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"
)

// Scanning thousands of processes uses at most a twentieth of one CPU.
func TestScanShare(t *testing.T) {
	for took := time.Millisecond; took <= time.Second; took += time.Millisecond {
		if wait := untilNextScan(took); wait < scanShare*took || wait < scanPeriod {
			t.Fatalf("a look of %v, then %v", took, wait)
		}
	}
	if wait := untilNextScan(time.Minute); wait != scanPeriodMost {
		t.Errorf("an unmanaged program is seen only after %v", wait)
	}
}
