// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"

	"xsched/internal/control"
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
	return &control.Device{
		ID: id.String(), Driver: dev.Driver, Virtual: dev.Virtual, Name: dev.Name,
		MaxLevel: int(max(dev.MaxLevel, level)), LevelReason: dev.Reason, Slices: dev.Slices, Probed: dev.Probed,
		ComputeMode: dev.ComputeMode, MIG: dev.Divided,
	}
}

// someCanDo rejects a level that no GPU supports. If only some programs lack it, the others get it,
// and `list` shows the reason.
func (d *Daemon) someCanDo(ctx context.Context, l model.Level) error {
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
	reason := ""
	for _, dev := range reply.Devices {
		if model.Level(dev.MaxLevel) >= l {
			return nil
		}
		reason = dev.LevelReason
	}
	if len(reply.Devices) == 0 {
		return nil // unknown until the first program probes the GPU
	}
	return control.Errorf(control.ErrNotSupported, "use level 1", "no GPU supports level %d: %s", l, reason)
}
