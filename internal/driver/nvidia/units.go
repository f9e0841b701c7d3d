// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"cmp"
	"maps"
	"slices"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// unit is one client's subdevice on a GPU with its proved groups and channels.
type unit struct {
	client    *rmClient
	subdevice uint32
	compute   []*object // groups whose timeslice we set
	stop      []*object // channels that a suspension stops
	others    []*object // channels that it ignores
}

// units returns the proved objects on one GPU. Preconditions: s.mu is held.
func (s *Objects) units(gpu model.DeviceID) []unit { return s.collect(gpu, false) }

// collect is units, optionally with hidden objects.
func (s *Objects) collect(gpu model.DeviceID, hidden bool) []unit {
	var us []unit
	for _, c := range s.clients {
		seen := map[uint32]bool{} // devices; a second subdevice of one adds nothing
		all := slices.DeleteFunc(sorted(c.objects), func(o *object) bool { return o.hidden && !hidden })
		for _, sub := range all {
			if sub.class != abi.NV20_SUBDEVICE_0 || sub.proof != proved || sub.gpu != gpu || seen[sub.parent] {
				continue
			}
			seen[sub.parent] = true
			if u := s.unit(c, sub, all); len(u.compute) > 0 {
				us = append(us, u)
			}
		}
	}
	slices.SortFunc(us, func(a, b unit) int { return int(a.client.handle) - int(b.client.handle) })
	return us
}

func (s *Objects) unit(c *rmClient, sub *object, all []*object) unit {
	u := unit{client: c, subdevice: sub.handle}
	computes := map[uint32]bool{} // groups with a compute object
	var groups []*object
	for _, o := range all {
		switch {
		case o.isGroup() && o.proof == proved && o.parent == sub.parent:
			groups = append(groups, o)
		case o.isCompute():
			if ch := c.objects[o.parent]; ch != nil {
				computes[ch.parent] = true
			}
		}
	}
	ours := map[uint32]bool{}
	for i, g := range groups {
		ours[g.handle] = true
		// Without any compute object the first group is the compute group.
		if computes[g.handle] || len(computes) == 0 && i == 0 {
			u.compute = append(u.compute, g)
			computes[g.handle] = true
		}
	}
	for _, o := range all {
		switch {
		case !o.isChannel() || o.proof != proved:
		case s.everyChannel && o.parent == sub.parent, computes[o.parent] && ours[o.parent]:
			u.stop = append(u.stop, o)
		case ours[o.parent]:
			u.others = append(u.others, o)
		}
	}
	return u
}

func sorted(m map[uint32]*object) []*object {
	return slices.SortedFunc(maps.Values(m), func(a, b *object) int { return cmp.Compare(a.order, b.order) })
}

// capabilities returns the capability of each GPU with a proved subdevice. Preconditions: s.mu is
// held.
func (s *Objects) capabilities() map[model.DeviceID]driver.Capability {
	out := map[model.DeviceID]driver.Capability{}
	for _, c := range s.clients {
		for _, o := range c.objects {
			if o.class == abi.NV20_SUBDEVICE_0 && o.proof == proved && !o.hidden {
				out[o.gpu] = driver.Capability{MaxLevel: model.LevelBlock, Reason: s.noChannel("the process has no hardware channel on this GPU yet")}
			}
		}
	}
	for gpu := range out {
		for _, u := range s.units(gpu) {
			if len(u.stop) > 0 {
				out[gpu] = s.driver.capability(gpu, s.refused[gpu])
			}
		}
	}
	return out
}

// noChannel explains a missing channel: MPS if it is running, or else the given reason.
func (s *Objects) noChannel(otherwise string) string {
	if why := s.driver.mps.reason(); why != "" {
		return why
	}
	return otherwise
}

// shown is an immutable snapshot for lock-free readers.
type shown struct {
	rejected string
	clients  int
	slices   map[model.DeviceID]int64 // the application's own, in microseconds
}

// showClients publishes the clients. Preconditions: s.mu is held.
func (s *Objects) showClients() {
	s.shown.Store(&shown{s.rejected, len(s.clients), s.shown.Load().slices})
}

// showSlices publishes the application's own timeslices. Preconditions: s.mu is held.
func (s *Objects) showSlices() {
	own := map[model.DeviceID]int64{}
	for gpu := range s.gpus() {
		own[gpu] = s.ownSlice(gpu)
	}
	s.shown.Store(&shown{s.rejected, len(s.clients), own})
}

// gpus returns the GPUs with a proved subdevice, hidden ones included. Preconditions: s.mu is held.
func (s *Objects) gpus() map[model.DeviceID]bool {
	out := map[model.DeviceID]bool{}
	for _, c := range s.clients {
		for _, o := range c.objects {
			if o.class == abi.NV20_SUBDEVICE_0 && o.proof == proved {
				out[o.gpu] = true
			}
		}
	}
	return out
}

func (s *Objects) ownSlice(gpu model.DeviceID) int64 {
	for _, u := range s.units(gpu) {
		for _, g := range u.compute {
			if g.ownKnown {
				return int64(min(g.ownUS, 1<<62))
			}
		}
	}
	return 0
}

// Why explains why no hardware queue is known. Lock-free, because clients control how long mu is
// held.
func (s *Objects) Why() (reason string, known bool) {
	now := s.shown.Load()
	if why := s.driver.untouchable(); why != "" {
		return why, now.clients > 0
	}
	switch {
	case now.rejected != "":
		return "the control file it handed over was refused: " + now.rejected, true
	case now.clients == 0:
		return s.noChannel("the process has handed over no control file yet"), false
	}
	return s.noChannel("no hardware queue of the process on this GPU could be proved yet"), true
}

// OwnSlice returns the application's own timeslice on a GPU in microseconds; 0: unknown. Lock-free.
func (s *Objects) OwnSlice(gpu model.DeviceID) int64 { return s.shown.Load().slices[gpu] }
