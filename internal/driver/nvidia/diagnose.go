// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"path/filepath"
	"strings"

	"xsched/internal/driver"
	"xsched/internal/model"
)

const pciVendor = 0x10de

var _ driver.Finder = kernelDriver{}

// OnBus finds NVIDIA's displays and accelerators.
func (kernelDriver) OnBus(root string) []string { return driver.BusGPUs(root, pciVendor) }

// Diagnose examines the kernel module, its device nodes, MPS, MIG and the compute mode.
func (k kernelDriver) Diagnose(h driver.Host) driver.Diagnosis {
	d := driver.Diagnosis{Level: model.LevelBlock}
	system := System{Root: h.Root}
	v, err := system.DriverVersion()
	if err != nil {
		d.Absent, d.Remedy = "no NVIDIA kernel module is loaded", "install the NVIDIA driver and `modprobe nvidia`"
		if gpus := k.OnBus(h.Root); len(gpus) > 0 {
			d.OnBus, d.Absent = true, "NVIDIA GPU "+strings.Join(gpus, ", ")+" has no driver: no NVIDIA kernel module is loaded"
		}
		return d
	}
	d.Loaded, d.Version = true, v
	version(&d, h, system)
	nodes(&d, h, system)
	gpus(&d, system)
	mps(&d, h, system)
	mig(&d, system)
	computeMode(&d, h)
	return d
}

// version grades the loaded driver and reports its self-tests.
func version(d *driver.Diagnosis, h driver.Host, system System) {
	g, err := grade(d.Version)
	const repeat = "`xsched doctor --self-test` repeats the test and shows each step"
	passed, failed := 0, ""
	for _, t := range readTests(h.Path(filepath.Join(h.StateDir, testFile))) {
		switch {
		case t.Driver != d.Version || t.Version != h.Version:
		case t.Outcome == driver.OutcomePassed:
			passed++
		case t.Outcome == driver.OutcomeFailed && !t.Stop:
			failed = t.GPU + ": " + t.Reason
		}
	}
	switch {
	case g == Unsupported:
		d.Add("driver", driver.Limited, err.Error(), "level 1 works; for more use a driver of "+knownRange())
	case failed != "":
		d.Add("driver", driver.Limited, fmt.Sprintf("%s failed the self-test on %s", d.Version, failed), "level 1 works; "+repeat)
	case g == Measured:
		d.Level = model.LevelInterrupt
		d.Add("driver", driver.OK, fmt.Sprintf("%s, measured on %s", d.Version, measured[d.Version]), "")
	case passed > 0 && passed >= len(system.GPUs()):
		d.Level = model.LevelInterrupt
		d.Add("driver", driver.OK, d.Version+", passed the self-test", "")
	case g == Unlisted:
		d.Add("driver", driver.Limited, err.Error(), "level 1 works; run `xsched doctor --self-test`, or use a driver of "+knownRange())
	default:
		d.Add("driver", driver.Limited, d.Version+" has the ABI of a measured driver, but has not passed the self-test here",
			"level 1 works; the daemon tests while the GPU is idle; `xsched doctor --self-test` tests immediately")
	}
}

func nodes(d *driver.Diagnosis, h driver.Host, system System) {
	names := []string{controlPath}
	for _, g := range system.GPUs() {
		if g.Minor >= 0 {
			names = append(names, fmt.Sprintf("/dev/nvidia%d", g.Minor))
		}
	}
	d.AddNodes(h, names, driver.NodeRemedies{
		Container:  "start it with the GPU: `--gpus all`, or `--device " + names[0] + "`",
		Missing:    "run `nvidia-modprobe -u -c 0`, or any CUDA program as root once",
		Permission: "join its group, or in a container allow the device",
	})
}

func gpus(d *driver.Diagnosis, system System) {
	for _, g := range system.GPUs() {
		d.GPUs = append(d.GPUs, driver.GPU{PCI: g.PCI, Name: g.Name, Driver: Name})
		name := g.Name
		if name == "" {
			name = "unnamed"
		}
		d.Add("GPU "+g.PCI, driver.OK, name, "")
	}
	if len(d.GPUs) == 0 {
		d.Add("GPUs", driver.Missing, "the driver lists none", "check `dmesg` and `lspci`")
	}
}

func mps(d *driver.Diagnosis, h driver.Host, system System) {
	pipe := h.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	m := system.MPS()
	const remedy = "level 1 works; for levels 2 and 3 stop MPS: `echo quit | nvidia-cuda-mps-control`"
	switch {
	case len(m.Servers) > 0:
		d.Level = model.LevelBlock
		d.Add("MPS", driver.Limited, fmt.Sprintf("running (server pid %d): the server owns its clients' channels", m.Servers[0]), remedy)
	case m.Running():
		d.Level = model.LevelBlock
		d.Add("MPS", driver.Limited, fmt.Sprintf("control daemon is running (pid %d): new programs become its clients", m.Control), remedy)
	case system.MPSPipe(pipe):
		if pipe == "" {
			pipe = DefaultMPSPipe
		}
		d.Add("MPS", driver.Note, "control pipe in "+pipe+", but no MPS process is visible",
			"remove the folder unless MPS runs outside this container")
	default:
		d.Add("MPS", driver.OK, "not running", "")
	}
}

func mig(d *driver.Diagnosis, system System) {
	divided := system.MIG()
	if len(divided) == 0 {
		d.Add("MIG", driver.OK, "no GPU is partitioned", "")
		return
	}
	var names []string
	for _, n := range divided {
		names = append(names, fmt.Sprintf("nvidia%d", n))
	}
	d.Add("MIG", driver.Limited, strings.Join(names, ", ")+" partitioned: XSched schedules all instances of a GPU as one device (not measured)",
		"give each program its own instance without XSched, or disable MIG")
}

func computeMode(d *driver.Diagnosis, h driver.Host) {
	const name = "compute mode"
	said := false
	for id, mode := range h.ComputeModes {
		switch mode {
		case "":
			continue
		case "default":
			d.Add(name, driver.OK, id+": default", "")
		default:
			d.Add(name, driver.Limited, id+": "+mode+": programs can't share it",
				"`nvidia-smi -c DEFAULT` as root allows sharing")
		}
		said = true
	}
	if !said {
		d.Add(name, driver.Note, "unknown: the driver reports it only to programs on the GPU",
			"run a program with `xsched run` and retry; CUDA reports \"device busy\" on an exclusive GPU")
	}
}
