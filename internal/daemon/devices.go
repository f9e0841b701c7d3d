// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"maps"
	"slices"
	"strings"

	"xsched/internal/control"
	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// describe returns a GPU's properties without its users.
func (d *Daemon) describe(id model.DeviceID, all []loop.ClientView) *control.Device {
	owned := false // a process has its own hardware queues there
	level := model.LevelAuto
	for _, s := range all {
		if c, ok := s.Caps[id]; ok {
			owned = owned || c.MaxLevel > model.LevelBlock
			level = max(level, c.MaxLevel)
		}
	}
	dev := d.drivers.Describe(id, owned)
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

// settings returns the GPUs with a policy or a mode of their own.
func settings(c *engine.Config) []control.DeviceSetting {
	out := make([]control.DeviceSetting, 0, len(c.Devices))
	for _, id := range slices.Sorted(maps.Keys(c.Devices)) {
		s := c.Devices[id]
		out = append(out, control.DeviceSetting{Device: id.String(), Policy: s.Policy, Mode: string(s.Mode), Level: int(s.ForceLevel)})
	}
	return out
}

// settable parses the address of a GPU that can have settings; 0: none is named. A host whose driver
// lists its GPUs has no others.
func (d *Daemon) settable(ctx context.Context, name string) (model.DeviceID, error) {
	if name == "" {
		return 0, nil
	}
	const remedy = "see `xsched list --devices`"
	id, err := model.ParseDeviceID(name)
	if err != nil || id == 0 || id.String() != strings.ToLower(name) {
		return 0, control.Errorf(control.ErrInvalid, remedy, "%q is not a PCI address like 0000:01:00.0", name)
	}
	if listed := d.drivers.Devices(); len(listed) == 0 || slices.Contains(listed, id) {
		return id, nil
	}
	used, err := d.Devices(ctx, control.Caller{})
	if err != nil {
		return 0, err
	}
	if slices.ContainsFunc(used.Devices, func(u control.Device) bool { return u.ID == id.String() }) {
		return id, nil
	}
	return 0, control.Errorf(control.ErrNotFound, remedy, "there is no GPU %s", id)
}

// someCanDo rejects a level that no GPU, or the given one, supports. If only some programs lack it,
// the others get it, and `list` shows the reason.
func (d *Daemon) someCanDo(ctx context.Context, l model.Level, on model.DeviceID) error {
	if l <= model.LevelBlock {
		return nil
	}
	if d.drivers.Empty() {
		return control.Errorf(control.ErrNotSupported, "use level 1", "level %d is unavailable: %s", l, d.drivers.Absent())
	}
	reply, err := d.Devices(ctx, control.Caller{})
	if err != nil {
		return err
	}
	reason, some := "", false
	for _, dev := range reply.Devices {
		if on != 0 && dev.ID != on.String() {
			continue
		}
		some = true
		if model.Level(dev.MaxLevel) >= l {
			return nil
		}
		reason = dev.LevelReason
	}
	if !some {
		return nil // unknown until the first program probes the GPU
	}
	if on != 0 {
		return control.Errorf(control.ErrNotSupported, "use level 1", "%s does not support level %d: %s", on, l, reason)
	}
	return control.Errorf(control.ErrNotSupported, "use level 1", "no GPU supports level %d: %s", l, reason)
}
