// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// answers is a device node whose driver has an interface version.
func answers(major, minor uint32) func(string, uint32, []byte) error {
	return func(path string, request uint32, arg []byte) error {
		if _, err := os.Stat(path); err != nil {
			return err
		}
		if request != 0x80084B01 { // AMDKFD_IOC_GET_VERSION
			return syscall.ENOTTY
		}
		binary.LittleEndian.PutUint32(arg, major)
		binary.LittleEndian.PutUint32(arg[4:], minor)
		return nil
	}
}

// amdMachine is a host with one AMD GPU and no other driver.
func amdMachine(t *testing.T) Machine {
	t.Helper()
	m := machine(t)
	for _, name := range []string{"proc/driver", "dev/nvidiactl", "dev/nvidia0"} {
		if err := os.RemoveAll(filepath.Join(m.Root, name)); err != nil {
			t.Fatal(err)
		}
	}
	amdGPU(t, m.Root)
	m.Ask = answers(1, 17)
	busGPU(t, m.Root, "0000:05:00.0", "0x1002", "0x120000")
	busGPU(t, m.Root, "0000:00:01.0", "0x10de", "0x020000") // a network card
	m.Daemon = func() (Daemon, error) {
		return Daemon{Dir: "/run/xsched", Version: "1", Scheduling: "SCHED_FIFO 1"}, nil
	}
	return m
}

func amdGPU(t *testing.T, root string) {
	t.Helper()
	const nodes = "sys/class/kfd/kfd/topology/nodes/"
	file(t, root, nodes+"0/gpu_id", "0\n")
	file(t, root, nodes+"0/properties", "cpu_cores_count 64\n")
	file(t, root, nodes+"1/gpu_id", "63420\n")
	file(t, root, nodes+"1/name", "ip discovery\n")
	file(t, root, nodes+"1/properties", "capability 536905344\ngfx_target_version 90402\nlocation_id 1280\ndomain 0\ndrm_render_minor 128\n")
	file(t, root, "sys/module/amdgpu/version", "6.10.5\n")
	file(t, root, "dev/kfd", "")
	file(t, root, "dev/dri/renderD128", "")
	file(t, root, "opt/rocm-7.0.2/.info/version", "7.0.2-56\n")
}

func TestAMDOnly(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *Machine)
		level  int
		check  string // the check that is not OK; empty: none
		words  []string
	}{
		"everything is there": {func(*Machine) {}, 3, "", nil},
		"no debugging": {func(m *Machine) {
			file(t, m.Root, "sys/class/kfd/kfd/topology/nodes/1/properties", "capability 0\nlocation_id 1280\n")
		}, 2, "debugging", []string{"0000:05:00.0", "xsched run"}},
		"node not readable": {func(m *Machine) {
			m.Open = func(path string) error {
				if strings.HasSuffix(path, "/dev/kfd") {
					return fs.ErrPermission
				}
				return nil
			}
		}, 0, "device nodes", []string{"/dev/kfd", "render"}},
		"container without the node": {func(m *Machine) {
			file(t, m.Root, ".dockerenv", "")
			_ = os.Remove(filepath.Join(m.Root, "dev/kfd"))
		}, 0, "device nodes", []string{"--device /dev/kfd"}},
		"old interface":     {func(m *Machine) { m.Ask = answers(1, 11) }, 2, "KFD interface", []string{"1.11", "1.13", "Linux 6.5", "xsched run"}},
		"unknown interface": {func(m *Machine) { m.Ask = answers(2, 0) }, 1, "KFD interface", []string{"2.0", "newer XSched"}},
		"silent interface": {func(m *Machine) {
			m.Ask = func(string, uint32, []byte) error { return syscall.EIO }
		}, 3, "KFD interface", []string{"unknown", "dmesg"}},
		"no hardware scheduler": {func(m *Machine) {
			file(t, m.Root, "sys/module/amdgpu/parameters/sched_policy", "2\n")
		}, 2, "module parameter", []string{"amdgpu.sched_policy=2", "reboot"}},
		"waves are not saved": {func(m *Machine) {
			file(t, m.Root, "sys/module/amdgpu/parameters/cwsr_enable", "0\n")
		}, 2, "module parameter", []string{"amdgpu.cwsr_enable=0", "until running kernels end"}},
		"ptrace of children only": {func(m *Machine) {
			file(t, m.Root, "proc/sys/kernel/yama/ptrace_scope", "1\n")
			m.UID, m.Dir = 4711, "/nowhere/xsched"
		}, 2, "debugging", []string{"ptrace_scope is 1", "as root"}},
		"ptrace by a capability": {func(m *Machine) {
			file(t, m.Root, "proc/sys/kernel/yama/ptrace_scope", "1\n")
			file(t, m.Root, "proc/self/status", "CapEff:\t0000000000080000\n")
			m.UID, m.Dir = 4711, "/run/nothing"
		}, 3, "", nil},
		"root without ptrace": {func(m *Machine) {
			file(t, m.Root, "proc/self/status", "CapEff:\t00000000a80425fb\n")
			m.UID, m.Dir = 0, "/nowhere/xsched"
		}, 3, "debugging", []string{"CAP_SYS_PTRACE", "--cap-add"}},
		"no ROCm": {func(m *Machine) { _ = os.RemoveAll(filepath.Join(m.Root, "opt")) }, 3, "ROCm", []string{"not found", "ROCM_PATH"}},
		"another ROCm": {func(m *Machine) {
			file(t, m.Root, "opt/rocm-9.1.0/.info/version", "9.1.0\n")
		}, 3, "ROCm", []string{"9.1.0", "ROCm 5 to 7"}},
		"ROCm elsewhere": {func(m *Machine) {
			_ = os.RemoveAll(filepath.Join(m.Root, "opt"))
			file(t, m.Root, "usr/local/rocm/.info/version", "6.4.0-47\n")
			m.Getenv = func(k string) string { return map[string]string{"ROCM_PATH": "/usr/local/rocm"}[k] }
		}, 3, "", nil},
		"no GPU": {func(m *Machine) {
			_ = os.RemoveAll(filepath.Join(m.Root, "sys/class/kfd/kfd/topology/nodes/1"))
		}, 0, "GPUs", []string{"lists none"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := amdMachine(t)
			c.change(&m)
			r := Examine(m)
			if r.OK != (c.level != 0) || r.Level != c.level || r.Driver != "amdkfd 6.10.5" {
				t.Errorf("%+v", r)
			}
			found := c.check == ""
			for _, got := range r.Checks {
				if strings.Contains(got.Detail+got.Remedy, "NVIDIA") {
					t.Errorf("a check about another driver on an AMD host: %+v", got)
				}
				switch {
				case got.Name == c.check && got.Status != OK:
					found = true
					for _, w := range c.words {
						if !strings.Contains(got.Detail+" "+got.Remedy, w) {
							t.Errorf("%+v does not say %q", got, w)
						}
					}
				case c.check == "" && got.Status != OK:
					t.Errorf("%+v", got)
				}
			}
			if !found {
				t.Errorf("no check %q in %+v", c.check, r.Checks)
			}
		})
	}
}

// A host with AMD GPUs but no driver is told about that driver only.
func TestAMDWithoutDriver(t *testing.T) {
	for name, c := range map[string]struct {
		module bool
		words  []string
	}{
		"no module": {false, []string{"AMD GPU 0000:05:00.0 has no driver", "modprobe amdgpu"}},
		"no amdkfd": {true, []string{"amdgpu is loaded without amdkfd", "0000:05:00.0", "CONFIG_HSA_AMD"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := amdMachine(t)
			gone := []string{"sys/class/kfd"}
			if !c.module {
				gone = append(gone, "sys/module/amdgpu")
			}
			for _, g := range gone {
				_ = os.RemoveAll(filepath.Join(m.Root, g))
			}
			r := Examine(m)
			var text string
			for _, got := range r.Checks {
				if got.Status == Missing {
					text += got.Detail + " " + got.Remedy
				}
			}
			if r.OK || strings.Contains(text, "NVIDIA") {
				t.Errorf("%+v", r)
			}
			for _, w := range c.words {
				if !strings.Contains(text, w) {
					t.Errorf("%q does not say %q", text, w)
				}
			}
		})
	}
}

// TestDrivers: a daemon that starts examines its drivers, and nothing else.
func TestDrivers(t *testing.T) {
	m := amdMachine(t)
	m.Ask = answers(1, 11)
	m.Daemon = func() (Daemon, error) { t.Error("asked a daemon"); return Daemon{}, nil }
	var bad []string
	for _, c := range Drivers(m) {
		if c.Status != OK {
			bad = append(bad, c.Name)
		}
	}
	if strings.Join(bad, " ") != "KFD interface" {
		t.Errorf("%q", bad)
	}
}
