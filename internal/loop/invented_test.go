// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"fmt"
	"strings"
	"testing"

	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// secondGPU is another GPU that the driver lists.
var secondGPU = model.MakeDeviceID(0, 2, 0, 0)

// invent makes a driver list two GPUs, and judge any other device alike.
func invent(c *sessiontest.Config, other driver.Claim) {
	c.Session.NewHardware = func(driver.SessionOptions) driver.Session {
		return &sessiontest.Hardware{Judge: func(gpu model.DeviceID) driver.Claim {
			if gpu == sessiontest.GPU || gpu == secondGPU {
				return driver.ClaimTrusted
			}
			return other
		}}
	}
}

// TestInventedDevices: a user claims queues on devices that no driver lists. They are refused where the
// host shows that it has no such device, and bounded by user otherwise. A program of another user that
// was suspended by hand stays so, `resume` works, and nothing of the devices remains.
func TestInventedDevices(t *testing.T) {
	for other, most := range map[driver.Claim]int{driver.ClaimAbsent: 0, driver.ClaimUnlisted: loop.MaxGPUs} {
		t.Run(fmt.Sprint(other), func(t *testing.T) {
			const clients = 8
			uids := []int{1001, 1001}
			for range clients {
				uids = append(uids, 1000)
			}
			h := sessiontest.Start(t, func(c *sessiontest.Config) {
				sessiontest.Users(c, uids...)
				invent(c, other)
			})
			var victims []*sessiontest.Client
			for i := range 2 {
				v := h.Client(t, 0, wire.LevelBlock)
				v.Page.CreateQueue(0, 0, uint32(i+1)<<8)
				v.Ring()
				victims = append(victims, v)
			}
			sessiontest.Await(t, "the victims' queues", func() bool { return devices(t, h) == 2 })
			all, err := h.Clients(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pid := all[0].PID
			if err := h.SetHeld(t.Context(), pid, true); err != nil {
				t.Fatal(err)
			}
			var bad []*sessiontest.Client
			for n := range clients {
				c := h.Client(t, 0, wire.LevelBlock)
				for i := range loop.MaxGPUs {
					c.Page.CreateQueue(i, 0, uint32(3+n*loop.MaxGPUs+i)<<8)
				}
				c.Ring()
				bad = append(bad, c)
			}
			sessiontest.Await(t, "the attacker's queues", func() bool { return h.Loop.Stats().Queues == 2+clients*loop.MaxGPUs })
			if n := devices(t, h); n != 2+most {
				t.Errorf("%d devices compete, want %d", n, 2+most)
			}
			gpus, err := h.GPUs(t.Context())
			if err != nil || len(gpus) != 2+most {
				t.Errorf("%d devices have an account, want %d; %v", len(gpus), 2+most, err)
			}
			if all, err = h.Clients(t.Context()); err != nil {
				t.Fatal(err)
			}
			last := all[len(all)-1].Queues[0]
			if last.Competes || !strings.HasPrefix(last.Reason, "not scheduled: ") {
				t.Errorf("the last invented device: %+v", last)
			}
			if !victims[0].Held(0) || victims[1].Held(0) {
				t.Errorf("suspended by hand: held %v; the other one: held %v", victims[0].Held(0), victims[1].Held(0))
			}
			if err := h.SetHeld(t.Context(), pid, false); err != nil {
				t.Fatal(err)
			}
			sessiontest.Await(t, "resume works", func() bool { return !victims[0].Held(0) })
			for _, c := range bad {
				c.Close()
			}
			sessiontest.Await(t, "the devices are gone", func() bool {
				gpus, err := h.GPUs(t.Context())
				return err == nil && len(gpus) == 2 && devices(t, h) == 2
			})
			// The places are free again.
			again := h.Client(t, 0, wire.LevelBlock)
			again.Page.CreateQueue(0, 0, 200<<8)
			again.Ring()
			sessiontest.Await(t, "a new device", func() bool { return h.Loop.Stats().Queues == 3 && devices(t, h) == 2+min(most, 1) })
		})
	}
}

// devices returns the number of devices on which queues compete.
func devices(t *testing.T, h *sessiontest.Fixture) int {
	t.Helper()
	seen := map[model.DeviceID]bool{}
	if err := h.Engine(t.Context(), func(e *engine.Engine) {
		for _, s := range e.Snapshot(0) {
			seen[s.Queue.Device] = true
		}
	}); err != nil {
		t.Fatal(err)
	}
	return len(seen)
}
