// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"slices"

	"xsched/internal/control"
	"xsched/internal/driver/nvidia"
	"xsched/internal/hub"
	"xsched/internal/model"
)

// describe says what a GPU does, without its users.
func (d *Daemon) describe(id string) *control.Device {
	if n, ok := d.amdGPUs()[id]; ok && (d.driver == nil || !d.driver.Virtual) {
		return d.describeAMD(id, n)
	}
	dev := &control.Device{ID: id, MaxLevel: int(model.LevelBlock), LevelReason: d.noDriver}
	if d.driver == nil {
		return dev
	}
	dev.Driver, dev.Virtual = d.driver.Version, d.driver.Virtual
	var v nvidia.Verdict
	if gpu, err := nvidia.ParsePCI(id); err == nil {
		v, dev.Probed = d.driver.Verdict(gpu)
	}
	dev.ComputeMode, dev.LevelReason = v.Compute, v.Reason
	switch {
	case !dev.Probed:
		dev.MaxLevel, dev.Slices = int(model.LevelInterrupt), true
		dev.LevelReason = "what its driver is known for; the first program on it shows whether it is so here"
	case v.Stop:
		dev.MaxLevel, dev.Slices = int(model.LevelInterrupt), v.Slices
	default:
		dev.Slices = v.Slices
	}
	return dev
}

// nameGPUs enters every GPU that the driver shows.
func (d *Daemon) nameGPUs(get func(id string) *control.Device) {
	if d.driver != nil && d.driver.Virtual {
		return
	}
	for id := range d.amdGPUs() {
		get(id)
	}
	if d.driver == nil {
		return
	}
	machine := nvidia.System{Root: "/"}
	divided := machine.MIG()
	for _, g := range machine.GPUs() {
		dev := get(g.PCI)
		dev.Name, dev.MIG = g.Name, slices.Contains(divided, g.Minor)
	}
}

// underMPS corrects what is said of GPUs whose users are clients of MPS: the
// channels are the server's, so no program can be stopped there by itself.
func (d *Daemon) underMPS(devices map[string]*control.Device, all []hub.SessionView) {
	if d.driver == nil || d.driver.MPSReason() == "" {
		return
	}
	own := map[string]bool{} // somebody has channels of his own there
	for _, s := range all {
		for gpu, c := range s.Caps {
			own[gpu.String()] = own[gpu.String()] || c.MaxLevel > model.LevelBlock
		}
	}
	for id, dev := range devices {
		if !own[id] {
			dev.MaxLevel, dev.Slices, dev.LevelReason = int(model.LevelBlock), false, d.driver.MPSReason()
		}
	}
}

// someCanDo refuses a level that can't be had on any GPU. Where only some
// programs can't have it, the level is forced on the others, and `list` says which not and why.
func (d *Daemon) someCanDo(ctx context.Context, l model.Level) error {
	if l <= model.LevelBlock {
		return nil
	}
	if d.driver == nil && len(d.amdGPUs()) == 0 {
		return control.Errorf(control.ErrNotSupported, "use level 1", "level %d is not to be had: %s", l, d.noDriver)
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
	return control.Errorf(control.ErrNotSupported, "use level 1", "level %d can't be had on any GPU: %s", l, reason)
}
