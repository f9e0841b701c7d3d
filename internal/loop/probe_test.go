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

// TestAttachedQueueLeaves: the queue of an attached program leaves with the GPU that it no longer uses, and
// returns with it under a number of its own.
func TestAttachedQueueLeaves(t *testing.T) {
	h := sessiontest.Start(t, sessiontest.Separate)
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	can := driver.Capability{MaxLevel: model.LevelInterrupt, Slices: true}
	both := map[model.DeviceID]driver.Capability{sessiontest.GPU: can, secondGPU: can}
	hw, who := &sessiontest.Hardware{Caps: both}, loop.Identity{PID: os.Getpid(), ClientPID: os.Getpid(), User: identity.OnHost(os.Getuid())}
	if _, err := h.Attach(t.Context(), who, model.HintChange{}, sessiontest.Attached{Hardware: hw, Ended: func(bool) {}}, pidfd); err != nil {
		t.Fatal(err)
	}
	for _, caps := range []map[model.DeviceID]driver.Capability{both, {secondGPU: can}, both, {sessiontest.GPU: can}, nil, both} {
		if err := h.Call(t.Context(), func() { h.SetCapsAt(h.OnlyClient(), caps) }); err != nil {
			t.Fatal(err)
		}
		seen := map[model.DeviceID]bool{}
		for _, q := range h.Only(t).Queues {
			seen[q.Device] = true
		}
		if len(seen) != len(caps) || len(h.Only(t).Queues) != len(caps) || devices(t, h) != len(caps) {
			t.Errorf("with %d GPUs: queues on %v, %d devices in the engine", len(caps), seen, devices(t, h))
		}
	}
}
