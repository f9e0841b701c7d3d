// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"fmt"
	"os"
	"strings"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// Diagnose examines the kernel driver, its device nodes and GPUs, and the debugger support that
// `xsched attach` needs.
func (kernelDriver) Diagnose(h driver.Host) driver.Diagnosis {
	d := driver.Diagnosis{Level: model.LevelBlock}
	if _, err := os.Stat(h.Path(SysfsRoot)); err != nil {
		d.Absent, d.Remedy = "no amdkfd driver is loaded", "install the AMD driver and `modprobe amdgpu`"
		return d
	}
	d.Loaded, d.Version = true, "amdkfd"
	if b, err := os.ReadFile(h.Path("sys/module/amdgpu/version")); err == nil {
		d.Version += " " + strings.TrimSpace(string(b))
	}
	d.Add("driver", driver.OK, d.Version, "")
	var found []Node
	nodes, err := ReadTopology(SourcesAt(h.Root).Sysfs)
	for _, n := range nodes {
		if n.IsGPU() {
			found = append(found, n)
		}
	}
	checkNodes(&d, h, found)
	switch {
	case err != nil:
		d.Add("GPUs", driver.Missing, err.Error(), "check `dmesg`")
		return d
	case len(found) == 0:
		d.Add("GPUs", driver.Missing, "the driver lists none", "check `dmesg` and `lspci`")
		return d
	}
	for _, n := range found {
		name := strings.TrimSpace(n.Target() + " " + n.Name)
		d.GPUs = append(d.GPUs, driver.GPU{PCI: n.PCI(), Name: name, Driver: Name})
		d.Add("GPU "+n.PCI(), driver.OK, name, "")
	}
	d.Level = model.LevelDeactivate
	checkDebugging(&d, found)
	return d
}

func checkNodes(d *driver.Diagnosis, h driver.Host, gpus []Node) {
	names := []string{DevicePath}
	for _, n := range gpus {
		if minor := n.Properties["drm_render_minor"]; minor != 0 {
			names = append(names, fmt.Sprintf("/dev/dri/renderD%d", minor))
		}
	}
	d.AddNodes(h, names, driver.NodeRemedies{
		Container:  "start it with `--device /dev/kfd --device /dev/dri`",
		Missing:    "check `dmesg`; udev creates it when the driver loads",
		Permission: "join its group, `render` on most systems",
	})
}

// checkDebugging checks for the trap handler and firmware that `attach` relies on.
func checkDebugging(d *driver.Diagnosis, gpus []Node) {
	const name = "debugging"
	var lacking []string
	for _, n := range gpus {
		if c := n.Properties["capability"]; c&CapTrapDebug == 0 || c&CapDebugFirmware == 0 {
			lacking = append(lacking, n.PCI())
		}
	}
	if len(lacking) == 0 {
		d.Level = model.LevelInterrupt
		d.Add(name, driver.OK, "every GPU supports it: `xsched attach` reaches level 3", "")
		return
	}
	d.Add(name, driver.Limited, strings.Join(lacking, ", ")+" lacks the trap handler or its firmware: `xsched attach` does not work there",
		"use `xsched run`, which reaches level 2; newer GPU firmware may add it")
}
