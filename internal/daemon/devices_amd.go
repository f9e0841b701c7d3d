// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"xsched/internal/control"
	"xsched/internal/driver/amd"
	"xsched/internal/model"
)

const amdLevel = "a program under `xsched run` is paused by its own library; level 3 takes `xsched attach`"

// platform is whose driver the virtual GPU plays.
func (d *Daemon) platform() string {
	switch {
	case !d.opts.Virtual:
		return ""
	case d.opts.Platform == "":
		return "nvidia"
	}
	return d.opts.Platform
}

// amdGPUs are the GPUs of AMD's driver, by PCI address.
func (d *Daemon) amdGPUs() map[string]amd.Node {
	nodes, err := amd.ReadTopology(d.amdDriver().Sources.Sysfs)
	if err != nil {
		return nil
	}
	out := map[string]amd.Node{}
	for _, n := range nodes {
		if n.IsGPU() {
			out[n.Device().String()] = n
		}
	}
	return out
}

// describeAMD says what a GPU of AMD's does, without its users.
func (d *Daemon) describeAMD(id string, n amd.Node) *control.Device {
	name := n.Target()
	if n.Name != "" {
		name += " " + n.Name
	}
	return &control.Device{
		ID: id, Driver: "amdkfd", Virtual: d.opts.Virtual, Name: name,
		MaxLevel: int(model.LevelDeactivate), LevelReason: amdLevel,
	}
}
