// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"maps"
	"slices"

	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// Rescan finds groups and channels that an attached process created since, and reports whether
// there are any. They stay hidden and untouched until Release.
func (s *Objects) Rescan(ctx context.Context) (found bool, err error) {
	s.mu.Lock()
	clients := make([]*rmClient, 0, len(s.clients))
	for _, c := range s.clients {
		clients = append(clients, c)
	}
	s.mu.Unlock()
	w := &walk{driver: s.driver, into: s}
	for _, c := range clients {
		hits, err := w.handles(ctx, c.file, c.handle)
		if err != nil {
			return false, err
		}
		more, err := s.adopt(ctx, w, c, hits)
		if err != nil {
			return false, err
		}
		found = found || more
	}
	if !found {
		return false, nil
	}
	return true, s.prove(ctx)
}

// adopt records the new hits.
func (s *Objects) adopt(ctx context.Context, w *walk, c *rmClient, hits []hit) (bool, error) {
	s.mu.Lock()
	fresh := false
	known := make([]*object, len(hits))
	for i, h := range hits {
		if known[i] = c.objects[h.handle]; known[i] != nil && known[i].class != h.class {
			c.remove(known[i]) // the handle was reused
			s.count--
			known[i] = nil
		}
		fresh = fresh || known[i] == nil
	}
	s.mu.Unlock()
	if !fresh {
		return false, nil
	}
	subdevice := map[model.DeviceID]uint32{}
	for i, h := range hits {
		if h.class == abi.NV20_SUBDEVICE_0 && known[i] != nil {
			subdevice[h.gpu] = known[i].parent
		}
	}
	for _, h := range hits {
		if h.class == abi.NV20_SUBDEVICE_0 && subdevice[h.gpu] == 0 {
			subdevice[h.gpu] = h.handle
		}
	}
	var next uint32
	for i := len(hits) - 1; i >= 0; i-- {
		h := &hits[i]
		switch {
		case known[i] != nil: // never probe again: a stopped channel would be enabled
			h.parent = known[i].parent
		case h.class == abi.NV20_SUBDEVICE_0:
			h.parent = subdevice[h.gpu]
		case h.class == abi.KEPLER_CHANNEL_GROUP_A:
			h.parent = next
		default:
			h.parent = w.owner(ctx, c.file, c.handle, h.handle, subdevice)
		}
		if h.class == anyChannel {
			next = h.parent
		}
	}
	added := false
	for i, h := range hits {
		if known[i] != nil || h.parent == 0 {
			continue
		}
		if err := s.enter(c.handle, object{handle: h.handle, parent: h.parent, class: h.class, hidden: true}); err != nil {
			return false, err
		}
		added = true
	}
	return added, nil
}

// Release unhides what Rescan found.
func (s *Objects) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		for _, o := range c.objects {
			o.hidden = false
		}
	}
	s.showSlices()
}

// GPUs lists the GPUs with a proved subdevice, hidden ones included.
func (s *Objects) GPUs() []model.DeviceID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.gpus()))
}
