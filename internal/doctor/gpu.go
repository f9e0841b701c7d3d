// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"xsched/internal/driver/nvidia"
)

func (e *examination) driver() {
	v, err := e.system.DriverVersion()
	if err != nil {
		e.add("driver", e.essential(), "no NVIDIA kernel module is loaded",
			"install the driver and `modprobe nvidia`; `xsched serve --virtual` works without one")
		if e.essential() != Missing {
			e.report.Level = 3 // of the virtual GPU
		}
		return
	}
	e.report.Driver = v
	measured, err := nvidia.Measured(v)
	if errors.Is(err, nvidia.ErrUnknownDriver) {
		e.add("driver", Limited, err.Error(),
			"level 1 works; for more use a driver "+strings.Join(nvidia.KnownDrivers(), " or ")+", or an xsched that knows this one")
		return
	}
	if err != nil {
		e.add("driver", Limited, err.Error(), "level 1 works; report this version")
		return
	}
	e.report.Level = 3
	e.add("driver", OK, fmt.Sprintf("%s, layout known (measured on %s)", v, measured), "")
}

func (e *examination) inContainer() bool {
	for _, name := range []string{".dockerenv", "run/.containerenv"} {
		if _, err := os.Stat(e.path(name)); err == nil {
			return true
		}
	}
	return e.Getenv("container") != "" || e.Getenv("KUBERNETES_SERVICE_HOST") != ""
}

func (e *examination) nodes() {
	if e.report.Driver == "" {
		return // the driver is what is missing
	}
	names := []string{"/dev/nvidiactl"}
	for _, g := range e.system.GPUs() {
		if g.Minor >= 0 {
			names = append(names, fmt.Sprintf("/dev/nvidia%d", g.Minor))
		}
	}
	bad := 0
	for _, name := range names {
		err := e.Open(e.path(name))
		switch {
		case err == nil:
			continue
		case errors.Is(err, fs.ErrNotExist) && e.inContainer():
			e.add("device nodes", e.nodeStatus(name), "this container has no "+name,
				"start it with the GPU: `--gpus all`, or `--device "+name+"`")
		case errors.Is(err, fs.ErrNotExist):
			e.add("device nodes", e.nodeStatus(name), name+" is not there", "run `nvidia-modprobe -u -c 0`, or any CUDA program as root once")
		case errors.Is(err, fs.ErrPermission):
			e.add("device nodes", e.nodeStatus(name), name+" can't be opened by this user", "join its group (see `ls -l "+name+"`), or in a container allow the device")
		default:
			e.add("device nodes", e.nodeStatus(name), fmt.Sprintf("%s: %v", name, err), "look at `dmesg`")
		}
		bad++
	}
	if bad == 0 {
		e.add("device nodes", OK, strings.Join(names, ", "), "")
	}
}

// nodeStatus: without the control node nothing works, a GPU that isn't ours is only not there.
func (e *examination) nodeStatus(name string) Status {
	if name == "/dev/nvidiactl" {
		return e.essential()
	}
	return Note
}

func (e *examination) gpus() {
	e.report.GPUs = append(e.report.GPUs, e.system.GPUs()...)
	if e.report.Driver == "" {
		return
	}
	if len(e.report.GPUs) == 0 {
		e.add("GPUs", e.essential(), "the driver shows none", "look at `dmesg` and `lspci`")
		return
	}
	for _, g := range e.report.GPUs {
		name := g.Name
		if name == "" {
			name = "unnamed"
		}
		e.add("GPU "+g.PCI, OK, name, "")
	}
}

func (e *examination) mps() {
	pipe := e.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	m := e.system.MPS()
	const remedy = "level 1 works under it; for levels 2 and 3 end it: `echo quit | nvidia-cuda-mps-control`"
	switch {
	case len(m.Servers) > 0:
		e.report.Level = 1
		e.add("MPS", Limited, fmt.Sprintf("runs (server pid %d): the channels of its clients belong to the server", m.Servers[0]), remedy)
	case m.Running():
		e.report.Level = 1
		e.add("MPS", Limited, fmt.Sprintf("its control daemon runs (pid %d): programs that start now become its clients", m.Control), remedy)
	case e.system.MPSPipe(pipe):
		if pipe == "" {
			pipe = nvidia.DefaultMPSPipe
		}
		e.add("MPS", Note, "there is a control pipe in "+pipe+", but no MPS process to be seen",
			"remove the folder if no MPS runs; in a container it may run outside")
	default:
		e.add("MPS", OK, "does not run", "")
	}
}

func (e *examination) mig() {
	divided := e.system.MIG()
	if len(divided) == 0 {
		e.add("MIG", OK, "no GPU is divided", "")
		return
	}
	var names []string
	for _, n := range divided {
		names = append(names, fmt.Sprintf("nvidia%d", n))
	}
	e.add("MIG", Limited, strings.Join(names, ", ")+" divided into instances: all instances of a GPU are scheduled as one device, which was not measured",
		"give each program its own instance and do not schedule it, or turn MIG off")
}

func (e *examination) computeMode() {
	if e.report.Driver == "" {
		return
	}
	const name = "compute mode"
	said := false
	if e.daemon != nil {
		for _, d := range e.daemon.Devices {
			switch {
			case d.ComputeMode == "":
				continue
			case d.ComputeMode == "default":
				e.add(name, OK, d.ID+": default", "")
			default:
				e.add(name, Limited, d.ID+": "+d.ComputeMode+", so a second program can't use it at the same time",
					"`nvidia-smi -c DEFAULT` as root, if programs shall share it")
			}
			said = true
		}
	}
	if !said {
		e.add(name, Note, "not known: the driver tells it to a program on the GPU only",
			"run a program with `xsched run` and look again; CUDA says \"device busy\" where a GPU is exclusive")
	}
}
