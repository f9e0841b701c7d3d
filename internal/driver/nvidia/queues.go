// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"cmp"
	"context"
	"slices"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// channel is a hardware queue: a channel or channel group.
type channel struct {
	handle, class, group uint32
	sliceUS              uint64 // group timeslice in effect; 0: unknown
}

// HardwareQueues lists the proved channel groups and channels by GPU.
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
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Details["client"], b.Details["client"]), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

func (u *unit) list(gpu model.DeviceID) (out []driver.HardwareQueue) {
	listed := map[uint32]bool{}
	add := func(kind string, stopped bool, c channel) {
		out = append(out, driver.HardwareQueue{
			Driver: Name, Device: gpu, Kind: kind, ID: uint64(c.handle), Stopped: stopped,
			Details: map[string]uint64{"client": uint64(u.client.handle), "handle": uint64(c.handle), "group": uint64(c.group), "class": uint64(c.class), "slice_us": c.sliceUS},
		})
	}
	group := func(g *object) {
		if g == nil || !g.isGroup() || listed[g.handle] {
			return
		}
		listed[g.handle] = true
		slice := g.ownUS
		if g.setUS != 0 {
			slice = g.setUS
		}
		add("group", false, channel{handle: g.handle, class: g.class, sliceUS: slice})
	}
	for _, g := range u.compute {
		group(g)
	}
	for _, c := range u.others {
		group(u.client.objects[c.parent])
	}
	for kind, channels := range map[string][]*object{"compute": u.stop, "copy": u.others} {
		for _, c := range channels {
			d := channel{handle: c.handle, class: c.class}
			if parent := u.client.objects[c.parent]; parent != nil && parent.isGroup() {
				d.group = parent.handle
			}
			add(kind, c.stopped != 0, d)
		}
	}
	return out
}

// Caught returns how many channels appeared while others of their client were stopped.
func (s *Objects) Caught() uint64 { return s.caught.Load() }

// catch counts a channel created while others are stopped. Preconditions: s.mu is held.
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
