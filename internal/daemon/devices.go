// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"

	"xsched/internal/control"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// describe says what a GPU supports, without its users.
func (d *Daemon) describe(id model.DeviceID, all []loop.ClientView) *control.Device {
	owned := false // by a process with hardware queues of its own there
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

// someCanDo refuses a level that can't be had on any GPU. Where only some
// programs can't have it, the level is forced on the others, and `list` says which not and why.
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
		return nil // the first program shows what its GPU does
	}
	return control.Errorf(control.ErrNotSupported, "use level 1", "no GPU supports level %d: %s", l, reason)
}
