// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// Diagnose examines the kernel module, its device nodes, MPS, MIG and the compute mode.
func (kernelDriver) Diagnose(h driver.Host) driver.Diagnosis {
	d := driver.Diagnosis{Level: model.LevelBlock}
	system := System{Root: h.Root}
	v, err := system.DriverVersion()
	if err != nil {
		d.Absent, d.Remedy = "no NVIDIA kernel module is loaded", "install the NVIDIA driver and `modprobe nvidia`"
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

// version grades the loaded driver, and looks for self-tests of it.
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
		d.Add("driver", driver.Limited, d.Version+" has the interface of a measured driver, but has not passed the self-test here",
			"level 1 works; a daemon tests by itself while nobody uses the GPU, and `xsched doctor --self-test` at once")
	}
}

func nodes(d *driver.Diagnosis, h driver.Host, system System) {
	names := []string{controlPath}
	for _, g := range system.GPUs() {
		if g.Minor >= 0 {
			names = append(names, fmt.Sprintf("/dev/nvidia%d", g.Minor))
		}
	}
	bad := 0
	for _, name := range names {
		status := driver.Note // a GPU that is not ours is merely absent
		if name == controlPath {
			status = driver.Missing
		}
		err := h.Open(h.Path(name))
		switch {
		case err == nil:
			continue
		case errors.Is(err, fs.ErrNotExist) && h.InContainer:
			d.Add("device nodes", status, "this container has no "+name, "start it with the GPU: `--gpus all`, or `--device "+name+"`")
		case errors.Is(err, fs.ErrNotExist):
			d.Add("device nodes", status, name+" is not there", "run `nvidia-modprobe -u -c 0`, or any CUDA program as root once")
		case errors.Is(err, fs.ErrPermission):
			d.Add("device nodes", status, name+" can't be opened by this user", "join its group (see `ls -l "+name+"`), or in a container allow the device")
		default:
			d.Add("device nodes", status, fmt.Sprintf("%s: %v", name, err), "look at `dmesg`")
		}
		bad++
	}
	if bad == 0 {
		d.Add("device nodes", driver.OK, strings.Join(names, ", "), "")
	}
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
		d.Add("GPUs", driver.Missing, "the driver shows none", "look at `dmesg` and `lspci`")
	}
}

func mps(d *driver.Diagnosis, h driver.Host, system System) {
	pipe := h.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	m := system.MPS()
	const remedy = "level 1 works under it; for levels 2 and 3 end it: `echo quit | nvidia-cuda-mps-control`"
	switch {
	case len(m.Servers) > 0:
		d.Level = model.LevelBlock
		d.Add("MPS", driver.Limited, fmt.Sprintf("runs (server pid %d): the channels of its clients belong to the server", m.Servers[0]), remedy)
	case m.Running():
		d.Level = model.LevelBlock
		d.Add("MPS", driver.Limited, fmt.Sprintf("its control daemon runs (pid %d): programs that start now become its clients", m.Control), remedy)
	case system.MPSPipe(pipe):
		if pipe == "" {
			pipe = DefaultMPSPipe
		}
		d.Add("MPS", driver.Note, "there is a control pipe in "+pipe+", but no MPS process to be seen",
			"remove the folder if no MPS runs; in a container it may run outside")
	default:
		d.Add("MPS", driver.OK, "does not run", "")
	}
}

func mig(d *driver.Diagnosis, system System) {
	divided := system.MIG()
	if len(divided) == 0 {
		d.Add("MIG", driver.OK, "no GPU is divided", "")
		return
	}
	var names []string
	for _, n := range divided {
		names = append(names, fmt.Sprintf("nvidia%d", n))
	}
	d.Add("MIG", driver.Limited, strings.Join(names, ", ")+" divided into instances: all instances of a GPU are scheduled as one device, which was not measured",
		"give each program its own instance and do not schedule it, or turn MIG off")
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
			d.Add(name, driver.Limited, id+": "+mode+", so a second program can't use it at the same time",
				"`nvidia-smi -c DEFAULT` as root, if programs shall share it")
		}
		said = true
	}
	if !said {
		d.Add(name, driver.Note, "unknown: the driver reports it only to a program on the GPU",
			"run a program with `xsched run` and look again; CUDA says \"device busy\" where a GPU is exclusive")
	}
}
