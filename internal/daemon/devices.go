// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"maps"
	"slices"

	"xsched/internal/control"
	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// describe returns a GPU's properties without its users.
func (v *views) describe(id model.DeviceID, all []loop.ClientView) *control.Device {
	owned := false // a process has its own hardware queues there
	level := model.LevelAuto
	for _, s := range all {
		if c, ok := s.Caps[id]; ok {
			owned = owned || c.MaxLevel > model.LevelBlock
			level = max(level, c.MaxLevel)
		}
	}
	dev := v.drivers.Describe(id, owned)
	out := &control.Device{
		ID: id.String(), Driver: dev.Driver, Virtual: dev.Virtual, Name: dev.Name,
		MaxLevel: int(max(dev.MaxLevel, level)), LevelReason: dev.Reason, Slices: dev.Slices, Probed: dev.Probed,
		ComputeMode: dev.ComputeMode, MIG: dev.Divided, MemoryBytes: dev.MemoryBytes,
	}
	if a := dev.Access; len(a.Nodes)+len(a.Variables)+len(a.CDI) > 0 {
		out.Access = &control.DeviceAccess{Nodes: a.Nodes, Variables: a.Variables, CDI: a.CDI}
	}
	return out
}

// modeOf returns the mode of a configuration, and the level of mode "level".
func modeOf(c *engine.Config) (mode string, level int) {
	if c.Mode == model.ModeLevel {
		level = int(c.ForceLevel)
	}
	return string(c.Mode), level
}

// deviceSettings returns the GPUs with a policy or a mode of their own.
func deviceSettings(c *engine.Config) []control.DeviceSetting {
	out := make([]control.DeviceSetting, 0, len(c.Devices))
	for _, id := range slices.Sorted(maps.Keys(c.Devices)) {
		s := c.Devices[id]
		out = append(out, control.DeviceSetting{Device: id.String(), Policy: s.Policy, Mode: string(s.Mode), Level: int(s.ForceLevel)})
	}
	return out
}

// gpuTable collects the GPUs of an answer.
type gpuTable struct {
	views  *views
	all    []loop.ClientView
	listed []model.DeviceID // by the driver
	byID   map[model.DeviceID]*control.Device
}

func (t *gpuTable) get(id model.DeviceID) *control.Device {
	if t.byID[id] == nil {
		t.byID[id] = t.views.describe(id, t.all)
	}
	return t.byID[id]
}

// add adds the GPUs of a process, with its numbers if they count.
func (t *gpuTable) add(s *loop.ClientView, count bool) {
	mine := map[model.DeviceID]bool{}
	for _, q := range s.Queues {
		if !q.Competes && !slices.Contains(t.listed, q.Device) {
			continue // the process invented the device
		}
		mine[q.Device] = true
		if dev := t.get(q.Device); count {
			dev.Queues++
			dev.BusyNS += q.Ran.Nanoseconds()
		}
	}
	for _, share := range s.Shares {
		if dev := t.get(share.Device); count {
			dev.Utilization = min(dev.Utilization+share.Share, 1)
		}
	}
	for gpu := range s.Caps {
		mine[gpu] = true
	}
	for id := range mine {
		if dev := t.get(id); count {
			dev.Processes++
		}
	}
}
