// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"maps"
	"slices"

	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// frontier is the number of handles above the highest one that are probed for new objects. The driver
// library numbers objects in sequence, and some of those that belong to a new channel were freed again.
const frontier = 16

// Grew reports whether an attached process has objects above the highest handle known. The cost is
// one call per handle of the frontier.
func (s *Objects) Grew(ctx context.Context) (bool, error) {
	for _, c := range s.attachedClients() {
		s.mu.Lock()
		top := c.top
		s.mu.Unlock()
		for h := top + 1; h <= top+frontier; h++ {
			_, err := s.driver.probeObject(ctx, c.file, c.handle, h, abi.NV20_SUBDEVICE_0)
			st, answered := statusOf(err)
			if err != nil && !answered {
				return false, err
			}
			if err == nil || !st.absent() {
				return true, nil
			}
		}
	}
	return false, nil
}

func (s *Objects) attachedClients() []*rmClient {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.clients))
}

// setTop records the highest handle in use.
func (s *Objects) setTop(client, top uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[client]; c != nil {
		c.top = max(top, firstHandle)
	}
}

// Rescan finds groups and channels that an attached process created since, and reports whether
// there are any. They stay hidden and untouched until Release. Unless full, only handles above the
// highest one known are tried.
func (s *Objects) Rescan(ctx context.Context, full bool) (found bool, err error) {
	w := &walk{driver: s.driver, into: s}
	for _, c := range s.attachedClients() {
		from := uint32(firstHandle)
		var known []hit
		if !full {
			from, known = s.knownHits(c)
		}
		hits, top, err := w.handles(ctx, c.file, c.handle, from)
		if err != nil {
			return false, err
		}
		more, err := s.adopt(ctx, w, c, append(known, hits...))
		if err != nil {
			return false, err
		}
		if full || top > 0 {
			s.setTop(c.handle, top)
		}
		found = found || more
	}
	if !found && !s.anyHidden() {
		return false, nil
	}
	return true, s.prove(ctx, scanTime)
}

// knownHits returns the objects of a client in the order of a walk, and the handle above them.
func (s *Objects) knownHits(c *rmClient) (from uint32, hits []hit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range slices.Sorted(maps.Keys(c.objects)) {
		o := c.objects[h]
		hits = append(hits, hit{handle: h, class: o.class, gpu: o.gpu})
	}
	return c.top + 1, hits
}

// adopt records the new hits.
func (s *Objects) adopt(ctx context.Context, w *walk, c *rmClient, hits []hit) (bool, error) {
	s.mu.Lock()
	fresh := false
	known := make([]*object, len(hits))
	for i, h := range hits {
		if known[i] = c.objects[h.handle]; known[i] != nil && known[i].class != h.class {
			c.remove(known[i]) // the handle was reused
			s.uncount(1)
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

// anyHidden reports that an earlier search found objects that were not released.
func (s *Objects) anyHidden() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		for _, o := range c.objects {
			if o.hidden {
				return true
			}
		}
	}
	return false
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
