// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"testing"
	"time"

	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// A low with a tiny timeslice is never suspended, but does not run beside a high with work either. That time
// is lost, counts as a preemption in favour of the high, and is no use of the GPU.
func TestYieldsAreAccounted(t *testing.T) {
	f := sessiontest.Start(t, sessiontest.Separate)
	high, low := f.Client(t, 10, wire.LevelInterrupt), f.Client(t, -10, wire.LevelInterrupt)
	high.HandOver(t)
	low.HandOver(t)
	high.Queue(0)
	low.Queue(0)
	low.Busy(0, true)
	sessiontest.Await(t, "the low runs with a tiny timeslice", func() bool { return sees(t, f, 1).Busy && sees(t, f, 1).Want.Slice != 0 })
	if q := sees(t, f, 1); q.Yields || q.Yielded != 0 || q.Yielding != 0 {
		t.Fatalf("yields to a high without work: %+v", q)
	}
	high.Busy(0, true)
	sessiontest.Await(t, "the low yields", func() bool { return sees(t, f, 1).Yields })
	before := sees(t, f, 1)
	time.Sleep(20 * time.Millisecond)
	after := sees(t, f, 1)
	if after.Yielded != 1 || after.Yielding < before.Yielding+20*time.Millisecond || after.Ran != before.Ran || after.Preemptions != 0 {
		t.Errorf("%+v then %+v", before, after)
	}
	views, err := f.Clients(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if by := after.StoppedBy; len(by) != 1 || by[views[0].PID] != 1 {
		t.Errorf("preempted by %v, want once by process %d", by, views[0].PID)
	}
	high.Busy(0, false)
	sessiontest.Await(t, "the low runs again", func() bool { return !sees(t, f, 1).Yields })
	before = sees(t, f, 1)
	sessiontest.Await(t, "it uses the GPU", func() bool { return sees(t, f, 1).Ran > before.Ran })
	if q := sees(t, f, 1); q.Yielded != 1 || q.Yielding != before.Yielding {
		t.Errorf("still counts: %+v then %+v", before, q)
	}
}
