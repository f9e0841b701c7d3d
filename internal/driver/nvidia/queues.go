// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"slices"

	"xsched/internal/driver"
	"xsched/internal/model"
)

var (
	_ driver.QueueLister = (*Objects)(nil)
	_ driver.Catcher     = (*Objects)(nil)
)

// HardwareQueues lists the channel groups and channels that were proved, by GPU.
func (s *Objects) HardwareQueues(context.Context) ([]driver.HardwareQueue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []driver.HardwareQueue
	for gpu := range s.gpus() {
		for _, u := range s.units(gpu) {
			out = append(out, u.list(gpu)...)
		}
	}
	slices.SortFunc(out, func(a, b driver.HardwareQueue) int {
		switch {
		case a.Device != b.Device:
			return int(int64(a.Device) - int64(b.Device))
		case a.Client != b.Client:
			return int(int64(a.Client) - int64(b.Client))
		}
		return int(int64(a.Handle) - int64(b.Handle))
	})
	return out, nil
}

func (u *unit) list(gpu model.DeviceID) (out []driver.HardwareQueue) {
	listed := map[uint32]bool{}
	group := func(g *object) {
		if g == nil || !g.isGroup() || listed[g.handle] {
			return
		}
		listed[g.handle] = true
		slice := g.ownUS
		if g.setUS != 0 {
			slice = g.setUS
		}
		out = append(out, driver.HardwareQueue{Device: gpu, Kind: "group", Client: u.client.handle, Handle: g.handle, Class: g.class, SliceUS: int64(min(slice, 1<<62))})
	}
	for _, g := range u.compute {
		group(g)
	}
	for _, c := range u.others {
		group(u.client.objects[c.parent])
	}
	for kind, channels := range map[string][]*object{"compute": u.stop, "copy": u.others} {
		for _, c := range channels {
			q := driver.HardwareQueue{Device: gpu, Kind: kind, Client: u.client.handle, Handle: c.handle, Class: c.class, Stopped: c.stopped != 0}
			if parent := u.client.objects[c.parent]; parent != nil && parent.isGroup() {
				q.Group = parent.handle
			}
			out = append(out, q)
		}
	}
	return out
}

// Caught is how many channels appeared while others of their client were stopped.
func (s *Objects) Caught() uint64 { return s.caught.Load() }

// catch counts a channel that comes while others are stopped. Preconditions: s.mu is held.
func (s *Objects) catch(c *rmClient, o *object) {
	if !o.isChannel() {
		return
	}
	for _, other := range c.objects {
		if other.stopped != 0 {
			s.caught.Add(1)
			return
		}
	}
}
