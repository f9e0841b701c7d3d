// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/policy"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// A queue with a tiny timeslice beside a high queue that is always busy gets probing turns, as a
// suspended queue does.
func TestGuessBesideALongSlice(t *testing.T) {
	knobs := policy.DefaultKnobs()
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		sessiontest.Separate(c)
		c.Engine.StarvationBound = 200 * time.Millisecond
	})
	high := h.Client(t, 10, wire.LevelAuto)
	high.HandOver(t)
	high.Queue(0)
	high.Busy(0, true)
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	caps := map[model.DeviceID]driver.Capability{sessiontest.GPU: {MaxLevel: model.LevelInterrupt, Slices: true}}
	hw, identity := &sessiontest.Hardware{Caps: caps}, loop.Identity{PID: os.Getpid(), ClientPID: os.Getpid(), User: identity.OnHost(os.Getuid())}
	s, err := h.Attach(t.Context(), identity, model.HintChange{}, sessiontest.Attached{Hardware: hw, Ended: func(bool) {}}, pidfd)
	if err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "a tiny slice", func() bool { return hw.Now().Slice == knobs.LowSlice })
	look := func() (idle bool) {
		if err := h.Observe(s.User, s.ID, false); err != nil {
			t.Fatal(err)
		}
		err := h.Call(t.Context(), func() { idle = h.GuessedIdle(s.ID, 0) })
		return err == nil && idle
	}
	sessiontest.Await(t, "it is taken for idle", look)
	sessiontest.Await(t, "no turn", func() bool { look(); return hw.Now().Slice == knobs.LowSlice })
	for range 2 {
		sessiontest.Await(t, "a turn", func() bool { look(); return hw.Now().Slice == knobs.GrantSlice })
		sessiontest.Await(t, "its end", func() bool { look(); return hw.Now().Slice == knobs.LowSlice })
	}
}
