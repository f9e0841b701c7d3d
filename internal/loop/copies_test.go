// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"testing"
	"time"

	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// A low that only copies is asked to report its next launch, and is not held. Its first kernel, in the
// middle of a busy period, makes it an ordinary low.
func TestCopyOnlyLow(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c) })
	high, low := h.Client(t, 10, wire.LevelBlock), h.Client(t, -10, wire.LevelBlock)
	high.Queue(0)
	low.Queue(0)
	low.Busy(0, true)
	low.Page.SetTally(0, 0, 1)
	low.Busy(0, false)
	const asked = wire.TellProgress | wire.TellLaunch
	sessiontest.Await(t, "it is asked for its launches", func() bool { return low.Page.Tell(0) == asked })
	low.Busy(0, true)
	high.Busy(0, true)
	sessiontest.Await(t, "the high has work", func() bool { return sees(t, h, 0).Busy && sees(t, h, 1).Busy })
	if q := sees(t, h, 1); low.Held(0) || q.Preemptions != 0 || !q.Copies {
		t.Errorf("not left alone: %+v", q)
	}
	low.Page.SetTally(0, 1, 1)
	low.Ring()
	sessiontest.Await(t, "it is held", func() bool { return low.Held(0) })
	if q := sees(t, h, 1); q.Copies || low.Page.Tell(0)&wire.TellLaunch != 0 {
		t.Errorf("still asked: %#x, %+v", low.Page.Tell(0), q)
	}
	high.Busy(0, false)
	sessiontest.Await(t, "it runs", func() bool { return !low.Held(0) })

	// One that is never idle is looked at with the heartbeat, and counts only if it does not launch.
	other := h.Client(t, -10, wire.LevelBlock)
	other.Queue(0)
	other.Busy(0, true)
	other.Page.SetTally(0, 0, 5)
	sessiontest.Await(t, "it copies", func() bool { return sees(t, h, 2).Copies })
	other.Page.DestroyQueue(0)
	other.Page.SetTally(0, 0, 0)
	other.Ring()
	time.Sleep(time.Millisecond)
	other.Queue(0)
	sessiontest.Await(t, "the slot's next queue is not asked", func() bool { return other.Page.Tell(0) == 0 })
}
