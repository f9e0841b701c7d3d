// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"testing"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// A worker is updated once, however many queues change. A client can't exceed its limit of GPUs.
func TestOneWorkerUpdatePerScan(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 0, wire.LevelInterrupt)
	c.HandOver(t)
	const n = 60
	for i := range n {
		c.Page.CreateQueue(i, 0, 1<<8)
	}
	c.Ring()
	sessiontest.Await(t, "all queues are known at level 3", func() bool {
		v := h.Only(t)
		return len(v.Queues) == n && v.Queues[0].Level == model.LevelInterrupt
	})
	for _, on := range []bool{true, false} {
		var times uint64
		if err := h.Call(context.Background(), func() {
			for i := range n {
				c.Page.SetBusy(i, on, clock.Now())
			}
			before := h.WorkerUpdates()
			h.ScanAt(clock.Now(), h.OnlyClient())
			times = h.WorkerUpdates() - before
		}); err != nil {
			t.Fatal(err)
		}
		if times != 1 {
			t.Errorf("%d worker updates", times)
		}
	}
	for i := range n {
		c.Page.DestroyQueue(i)
	}
	for i := range 2 * loop.MaxGPUs {
		c.Page.CreateQueue(n+i, 0, uint32(i+1)<<8)
	}
	c.Ring()
	sessiontest.Await(t, "as many GPUs as one may have", func() bool { return h.Loop.Stats().Queues == loop.MaxGPUs })
	for i := range loop.MaxGPUs {
		c.Page.DestroyQueue(n + i)
	}
	c.Ring()
	sessiontest.Await(t, "the others have their place", func() bool {
		v := h.Only(t)
		return len(v.Queues) == loop.MaxGPUs && v.Queues[0].Index >= n+loop.MaxGPUs
	})
}

// The count of bare queues, which lets Bare skip the loop, returns to 0.
func TestBareQueuesAreCounted(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		c.Session.NewHardware = func(driver.SessionOptions) driver.Session {
			caps := driver.Capability{MaxLevel: model.LevelInterrupt, Bare: true}
			return &sessiontest.Hardware{Caps: map[model.DeviceID]driver.Capability{sessiontest.GPU: caps}}
		}
	})
	c := h.Client(t, 0, wire.LevelAuto)
	sessiontest.Await(t, "a bare queue", func() bool { return h.UnhookedQueues() == 1 })
	if all, err := h.Unhooked(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	c.Queue(0)
	sessiontest.Await(t, "an announced queue replaces it", func() bool { return h.UnhookedQueues() == 0 && h.Loop.Stats().Queues == 1 })
}
