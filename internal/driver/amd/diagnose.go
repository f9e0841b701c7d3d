// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/driver"
	"xsched/internal/driver/amd/abi"
	"xsched/internal/model"
)

const (
	pciVendor     = 0x1002
	moduleVersion = "sys/module/amdgpu/version" // of AMD's driver package; the kernel's own has none
)

var _ driver.Finder = kernelDriver{}

// OnBus finds AMD's displays and accelerators.
func (kernelDriver) OnBus(root string) []string { return driver.BusGPUs(root, pciVendor) }

// Diagnose examines the kernel driver, its interface, device nodes, parameters and GPUs, the
// debugger support that `xsched attach` needs, and the runtime.
func (k kernelDriver) Diagnose(h driver.Host) driver.Diagnosis {
	d := driver.Diagnosis{Level: model.LevelBlock}
	if _, err := os.Stat(h.Path(SysfsRoot)); err != nil {
		notLoaded(&d, h, k.OnBus(h.Root))
		return d
	}
	d.Loaded, d.Version = true, "amdkfd"
	detail := "amdkfd of Linux " + firstLine(h, "proc/sys/kernel/osrelease")
	if v := firstLine(h, moduleVersion); v != "" {
		d.Version += " " + v
		detail = d.Version + ", AMD's driver package"
	}
	d.Add("driver", driver.OK, detail, "")
	var found []Node
	nodes, err := ReadTopology(SourcesAt(h.Root).Sysfs)
	for _, n := range nodes {
		if n.IsGPU() {
			found = append(found, n)
		}
	}
	checkNodes(&d, h, found)
	usable, debugger := checkInterface(&d, h)
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
	if usable {
		d.Level = model.LevelDeactivate
	}
	parameters := checkParameters(&d, h)
	checkDebugging(&d, h, found, debugger && parameters)
	checkRuntime(&d, h)
	return d
}

// notLoaded explains a missing driver by what the host has.
func notLoaded(d *driver.Diagnosis, h driver.Host, gpus []string) {
	d.OnBus = len(gpus) > 0
	_, err := os.Stat(h.Path("sys/module/amdgpu"))
	switch {
	case !d.OnBus:
		d.Absent, d.Remedy = "no amdkfd driver is loaded", "install the AMD driver and `modprobe amdgpu`"
	case err == nil:
		d.Absent = "amdgpu is loaded without amdkfd, which AMD GPU " + strings.Join(gpus, ", ") + " needs"
		d.Remedy = "use a kernel with CONFIG_HSA_AMD or AMD's driver package; check `dmesg | grep kfd`"
	default:
		d.Absent = "AMD GPU " + strings.Join(gpus, ", ") + " has no driver: amdgpu is not loaded"
		d.Remedy = "install the AMD driver and `modprobe amdgpu`"
	}
}

// firstLine reads a short file; empty if there is none.
func firstLine(h driver.Host, name string) string {
	b, _ := os.ReadFile(h.Path(name))
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
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

// checkInterface asks the version of the driver's interface. usable: pauses by the owner work;
// debugger: so do the debugger's requests.
func checkInterface(d *driver.Diagnosis, h driver.Host) (usable, debugger bool) {
	const name = "KFD interface"
	var v [8]byte
	err := fs.ErrInvalid
	if h.Ask != nil {
		err = h.Ask(h.Path(DevicePath), abi.AMDKFD_IOC_GET_VERSION, v[:])
	}
	major, minor := binary.LittleEndian.Uint32(v[:]), binary.LittleEndian.Uint32(v[4:])
	version := fmt.Sprintf("%d.%d", major, minor)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return true, true // reported with the nodes
	case err != nil:
		d.Add(name, driver.Note, "version unknown: "+err.Error(), "check `dmesg`; the first program on the GPU shows what works")
		return true, true
	case major != abi.Major:
		d.Add(name, driver.Limited, version+" is unknown to this XSched", "level 1 works; use a newer XSched")
		return false, false
	case minor < abi.MinorDebugger:
		d.Add(name, driver.Limited, fmt.Sprintf("%s has no debugger requests, which came with %d.%d: `xsched attach` does not work", version, abi.Major, abi.MinorDebugger),
			"use Linux 6.5 or newer, or AMD's current driver package; `xsched run` reaches level 2 without")
		return true, false
	}
	d.Add(name, driver.OK, version, "")
	return true, true
}

// checkParameters checks module parameters that preemption depends on. The result is false if
// waves can't be interrupted.
func checkParameters(d *driver.Diagnosis, h driver.Host) bool {
	fine := true
	for _, p := range []struct{ name, bad, effect string }{
		{"sched_policy", "2", "no hardware scheduler: the driver rejects debugger requests"},
		{"cwsr_enable", "0", "waves can't be saved: a pause waits until running kernels end"},
	} {
		if firstLine(h, "sys/module/amdgpu/parameters/"+p.name) == p.bad {
			fine = false
			d.Add("module parameter", driver.Limited, fmt.Sprintf("amdgpu.%s=%s: %s", p.name, p.bad, p.effect),
				fmt.Sprintf("remove amdgpu.%s from the kernel command line and /etc/modprobe.d, and reboot", p.name))
		}
	}
	return fine
}

// checkDebugging checks what `attach` relies on: the GPU's trap handler and firmware, the driver's
// requests, and the right to trace programs.
func checkDebugging(d *driver.Diagnosis, h driver.Host, gpus []Node, supported bool) {
	const name, run = "debugging", "use `xsched run`, which reaches level 2"
	var lacking []string
	for _, n := range gpus {
		if c := n.Properties["capability"]; c&CapTrapDebug == 0 || c&CapDebugFirmware == 0 {
			lacking = append(lacking, n.PCI())
		}
	}
	// The tracer is a process of its own and no ancestor of the program.
	reach, why, remedy := h.Tracing()
	switch {
	case len(lacking) > 0:
		d.Add(name, driver.Limited, strings.Join(lacking, ", ")+" lacks the trap handler or its firmware: `xsched attach` does not work there",
			run+"; newer GPU firmware may add it")
	case !supported: // already reported
	case reach <= driver.ReachChildren:
		d.Add(name, driver.Limited, "`xsched attach` has no right to trace programs: "+why, remedy)
	case reach == driver.ReachSome:
		d.Level = model.LevelInterrupt
		d.Add(name, driver.Note, "every GPU supports it, but "+why, remedy)
	default:
		d.Level = model.LevelInterrupt
		d.Add(name, driver.OK, "every GPU supports it: `xsched attach` reaches level 3", "")
	}
}

// Releases of ROCm whose runtime the hooks were written for.
const firstROCm, lastROCm = 5, 7

// checkRuntime reports the installed releases of ROCm.
func checkRuntime(d *driver.Diagnosis, h driver.Host) {
	const name = "ROCm"
	folders, _ := filepath.Glob(h.Path("opt/rocm*"))
	if p := h.Getenv("ROCM_PATH"); p != "" {
		folders = append(folders, h.Path(p))
	}
	var versions, other []string
	for _, folder := range folders {
		b, err := os.ReadFile(filepath.Join(folder, ".info/version"))
		v, _, _ := strings.Cut(strings.TrimSpace(string(b)), "-") // 7.0.2-56
		major, _, _ := strings.Cut(v, ".")
		n, bad := strconv.Atoi(major)
		if err != nil || bad != nil || slices.Contains(versions, v) { // /opt/rocm is a link to one of them
			continue
		}
		versions = append(versions, v)
		if n < firstROCm || n > lastROCm {
			other = append(other, v)
		}
	}
	known := fmt.Sprintf("%d to %d", firstROCm, lastROCm)
	switch {
	case len(other) > 0:
		d.Add(name, driver.Note, strings.Join(other, ", ")+": the hooks are written for ROCm "+known,
			"use one of these if `xsched list` shows no launches of a program")
	case len(versions) > 0:
		d.Add(name, driver.OK, strings.Join(versions, ", "), "")
	default:
		d.Add(name, driver.Note, "not found in /opt/rocm*: programs must bring their runtime, as Python wheels do",
			"install ROCm "+known+", or set ROCM_PATH to where it is")
	}
}
