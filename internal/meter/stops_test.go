// SPDX-License-Identifier: Apache-2.0

package meter

import "testing"

// Suspensions and yields count with their causes and times, and a snapshot keeps the causes as they were.
func TestStops(t *testing.T) {
	var s Stops
	s.Suspend(100, 7)
	if waited, ok := s.Resume(150); !ok || waited != 50 {
		t.Errorf("waited %v, %v", waited, ok)
	}
	if _, ok := s.Resume(160); ok {
		t.Error("a queue resumes twice")
	}
	s.Yield(200, 8)
	s.Share()
	before := s.Causes()
	s.Run(230)
	s.Suspended(300) // counts its time only
	if suspended, yielding := s.Times(310); suspended != 60 || yielding != 30 || s.Preemptions != 1 || s.Yielded != 1 {
		t.Errorf("suspended %v, yielding %v, %d preemptions, %d yields", suspended, yielding, s.Preemptions, s.Yielded)
	}
	for pid := range 3 * maxCauses {
		s.Yield(400, 100+pid)
	}
	if len(before) != 2 || before[7] != 1 || before[8] != 1 {
		t.Errorf("the snapshot has %v", before)
	}
	if c := s.Causes(); len(c) != maxCauses+1 || c[ByOthers] != 2*maxCauses+2 {
		t.Errorf("%d causes, %d of others", len(c), c[ByOthers])
	}
}
