// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"xsched/internal/driver/registry"
)

// kernel returns preset answers.
type kernel struct{ pidfd, getfd, seals, peer, ptrace, realtime, nice error }

func (k kernel) Pidfd() error      { return k.pidfd }
func (k kernel) PidfdGetfd() error { return k.getfd }
func (k kernel) MemfdSeals() error { return k.seals }
func (k kernel) PeerPidfd() error  { return k.peer }
func (k kernel) Ptrace() error     { return k.ptrace }
func (k kernel) Realtime() error   { return k.realtime }
func (k kernel) Nice() error       { return k.nice }

// file creates a file below a root.
func file(t *testing.T, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// useGPU gives a process below a root an open file of the driver, which is /dev/null there.
func useGPU(t *testing.T, root, process string) {
	t.Helper()
	file(t, root, "proc/devices", "Character devices:\n  1 nvidia-frontend\n")
	file(t, root, process+"/fdinfo/3", "flags:\t02100002\n")
	folder := filepath.Join(root, process, "fd")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", filepath.Join(folder, "3")); err != nil {
		t.Fatal(err)
	}
}

// machine is a healthy host: an H200 with a measured driver.
func machine(t *testing.T) Machine {
	t.Helper()
	root := t.TempDir()
	file(t, root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\n")
	file(t, root, "proc/driver/nvidia/gpus/0000:19:00.0/information", "Model: \t\t NVIDIA H200\nIRQ:   \t\t 130\nBus Location: \t 0000:19:00.0\nDevice Minor: \t 0\n")
	file(t, root, "dev/nvidiactl", "")
	file(t, root, "dev/nvidia0", "")
	file(t, root, "run/lock", "")
	return Machine{
		Root: root, UID: os.Geteuid(), Getenv: func(string) string { return "" }, Kernel: kernel{},
		Drivers: registry.All(),
		Open:    func(path string) error { _, err := os.Stat(path); return err }, Ask: answers(1, 17), Dir: "/run/xsched", StateDir: "state", Version: "1",
		Cache: func() (string, error) { return "/var/cache/xsched", nil },
		Shim:  func() (string, error) { return "/var/cache/xsched/1/libxsched.so", nil },
		Load:  func(string) error { return nil },
		Daemon: func() (Daemon, error) {
			return Daemon{Dir: "/run/xsched", Version: "1", Scheduling: "SCHED_FIFO 1", Devices: []Device{
				{ID: "0000:19:00.0", ComputeMode: "default", MaxLevel: 3, Probed: true},
			}}, nil
		},
	}
}

func TestEverythingIsThere(t *testing.T) {
	r := Examine(machine(t))
	if !r.OK || r.Level != 3 || r.Driver != "580.159.04" || len(r.GPUs) != 1 || r.GPUs[0].Name != "NVIDIA H200" {
		t.Errorf("%+v", r)
	}
	for _, c := range r.Checks {
		if c.Status != OK {
			t.Errorf("%+v", c)
		}
	}
}

// A driver with a known ABI equals a measured one once it has passed the self-test.
func TestSelfTestedDriver(t *testing.T) {
	m := machine(t)
	file(t, m.Root, "sys/module/nvidia/version", "550.54.14\n")
	file(t, m.Root, "state/selftest.json", `[{"driver":"550.54.14","version":"1","gpu":"0000:19:00.0","outcome":"passed","stop":true}]`)
	r := Examine(m)
	if !r.OK || r.Level != 3 || r.Driver != "550.54.14" {
		t.Errorf("%+v", r)
	}
}

func TestDefects(t *testing.T) {
	refused := errors.New("operation not permitted")
	for name, c := range map[string]struct {
		change func(t *testing.T, m *Machine)
		check  string // that must report it
		status Status
		words  []string
		level  int // 0: essential
	}{
		"no driver": {
			func(_ *testing.T, m *Machine) { _ = os.RemoveAll(filepath.Join(m.Root, "proc/driver")) },
			"driver", Missing,
			[]string{"no NVIDIA kernel module", "no amdkfd driver", "modprobe amdgpu", "serve --virtual"},
			0,
		},
		"a GPU without its driver": {
			func(t *testing.T, m *Machine) {
				_ = os.RemoveAll(filepath.Join(m.Root, "proc/driver"))
				busGPU(t, m.Root, "0000:19:00.0", "0x10de", "0x030200")
			},
			"driver", Missing,
			[]string{"NVIDIA GPU 0000:19:00.0 has no driver", "modprobe nvidia"},
			0,
		},
		"another vendor's GPU without its driver": {
			func(t *testing.T, m *Machine) { busGPU(t, m.Root, "0000:05:00.0", "0x1002", "0x120000") },
			"driver", Note,
			[]string{"AMD GPU 0000:05:00.0 has no driver", "modprobe amdgpu"},
			3,
		},
		"no driver but a virtual GPU": {func(_ *testing.T, m *Machine) {
			_ = os.RemoveAll(filepath.Join(m.Root, "proc/driver"))
			m.Daemon = func() (Daemon, error) { return Daemon{Virtual: true, Scheduling: "nice -10"}, nil }
		}, "driver", Note, []string{"no NVIDIA kernel module"}, 3},
		"unknown driver": {
			func(t *testing.T, m *Machine) { file(t, m.Root, "sys/module/nvidia/version", "999.10\n") },
			"driver", Limited,
			[]string{"999.10", "R535 to R595", "level 1", "--self-test"},
			1,
		},
		"old driver": {
			func(t *testing.T, m *Machine) { file(t, m.Root, "sys/module/nvidia/version", "525.60.11\n") },
			"driver", Limited,
			[]string{"525.60.11", "interface differs", "level 1"},
			1,
		},
		"same ABI, not tested": {
			func(t *testing.T, m *Machine) { file(t, m.Root, "sys/module/nvidia/version", "550.54.14\n") },
			"driver", Limited,
			[]string{"550.54.14", "has not passed the self-test", "doctor --self-test"},
			1,
		},
		"another version's test": {
			func(t *testing.T, m *Machine) {
				file(t, m.Root, "sys/module/nvidia/version", "550.54.14\n")
				file(t, m.Root, "state/selftest.json", `[{"driver":"550.54.14","version":"2","gpu":"0000:19:00.0","outcome":"passed","stop":true}]`)
			},
			"driver", Limited,
			[]string{"has not passed the self-test"},
			1,
		},
		"measured, self-test failed": {
			func(t *testing.T, m *Machine) {
				file(t, m.Root, "state/selftest.json", `[{"driver":"580.159.04","version":"1","gpu":"0000:19:00.0","outcome":"failed","reason":"it ran on"}]`)
			},
			"driver", Limited,
			[]string{"failed the self-test on 0000:19:00.0: it ran on", "repeats"},
			1,
		},
		"strange driver": {func(t *testing.T, m *Machine) {
			file(t, m.Root, "proc/driver/nvidia/version", "NVRM version: soon\n")
		}, "driver", Missing, nil, 0},
		"container without the node": {func(t *testing.T, m *Machine) {
			file(t, m.Root, ".dockerenv", "")
			_ = os.Remove(filepath.Join(m.Root, "dev/nvidiactl"))
		}, "device nodes", Missing, []string{"container", "/dev/nvidiactl", "--gpus"}, 0},
		"no node": {
			func(_ *testing.T, m *Machine) { _ = os.Remove(filepath.Join(m.Root, "dev/nvidiactl")) },
			"device nodes", Missing,
			[]string{"nvidia-modprobe"},
			0,
		},
		"a GPU without access": {
			func(_ *testing.T, m *Machine) { _ = os.Remove(filepath.Join(m.Root, "dev/nvidia0")) },
			"device nodes", Note,
			[]string{"/dev/nvidia0"},
			3,
		},
		"node not readable": {
			func(_ *testing.T, m *Machine) { m.Open = func(string) error { return fs.ErrPermission } },
			"device nodes", Missing,
			[]string{"lacks permission"},
			0,
		},
		"no GPU": {
			func(_ *testing.T, m *Machine) { _ = os.RemoveAll(filepath.Join(m.Root, "proc/driver/nvidia/gpus")) },
			"GPUs", Missing,
			[]string{"lists none"},
			0,
		},
		"MPS server": {func(t *testing.T, m *Machine) {
			file(t, m.Root, "proc/77/comm", "nvidia-cuda-mps\n")
			useGPU(t, m.Root, "proc/77")
			file(t, m.Root, "proc/77/cmdline", "nvidia-cuda-mps-server\x00")
		}, "MPS", Limited, []string{"pid 77", "the server owns", "quit"}, 1},
		"MPS control only": {func(t *testing.T, m *Machine) {
			file(t, m.Root, "proc/78/comm", "nvidia-cuda-mps\n")
			useGPU(t, m.Root, "proc/78")
			file(t, m.Root, "proc/78/cmdline", "/usr/bin/nvidia-cuda-mps-control\x00-d\x00")
		}, "MPS", Limited, []string{"pid 78", "new programs"}, 1},
		"MPS pipe only": {func(t *testing.T, m *Machine) {
			file(t, m.Root, "mps/control", "")
			m.Getenv = func(k string) string { return map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/mps"}[k] }
		}, "MPS", Note, []string{"/mps"}, 3},
		"MIG": {func(t *testing.T, m *Machine) {
			file(t, m.Root, "proc/driver/nvidia/capabilities/gpu0/mig/gi7/access", "")
		}, "MIG", Limited, []string{"nvidia0", "one device"}, 3},
		"exclusive": {func(_ *testing.T, m *Machine) {
			m.Daemon = func() (Daemon, error) {
				return Daemon{Scheduling: "nice -10", Devices: []Device{{ID: "0000:19:00.0", ComputeMode: "exclusive process", MaxLevel: 3, Probed: true}}}, nil
			}
		}, "compute mode", Limited, []string{"exclusive process", "nvidia-smi -c"}, 3},
		"compute mode not known": {func(_ *testing.T, m *Machine) {
			m.Daemon = func() (Daemon, error) { return Daemon{}, errors.New("no daemon at x; start one") }
		}, "compute mode", Note, []string{"unknown"}, 3},
		"no daemon": {func(_ *testing.T, m *Machine) {
			m.Daemon = func() (Daemon, error) { return Daemon{}, errors.New("no daemon at x; start one") }
		}, "daemon", Limited, []string{"no daemon at x", "natively", "start one"}, 3},
		"a dead daemon": {func(_ *testing.T, m *Machine) {
			m.Daemon = func() (Daemon, error) { return Daemon{Dead: "engine loop: no sign of life for 3s"}, nil }
		}, "daemon", Limited, []string{"is dead: engine loop", "restart the daemon"}, 3},
		"a GPU that does not stop": {func(_ *testing.T, m *Machine) {
			m.Daemon = func() (Daemon, error) {
				return Daemon{Devices: []Device{{ID: "0000:19:00.0", MaxLevel: 1, LevelReason: "not supported", Probed: true}}}, nil
			}
		}, "level on 0000:19:00.0", Limited, []string{"not supported"}, 1},
		"no pidfd":       {func(_ *testing.T, m *Machine) { m.Kernel = kernel{pidfd: syscall.ENOSYS} }, "pidfd", Missing, []string{"5.3"}, 0},
		"no seals":       {func(_ *testing.T, m *Machine) { m.Kernel = kernel{seals: syscall.EINVAL} }, "memfd seals", Missing, nil, 0},
		"no pidfd_getfd": {func(_ *testing.T, m *Machine) { m.Kernel = kernel{getfd: refused} }, "pidfd_getfd", Limited, []string{"attach"}, 3},
		"no peer pidfd":  {func(_ *testing.T, m *Machine) { m.Kernel = kernel{peer: syscall.ENOPROTOOPT} }, "SO_PEERPIDFD", Note, nil, 3},
		"no rights": {func(_ *testing.T, m *Machine) {
			m.Kernel = kernel{realtime: refused, nice: refused}
			m.Daemon = func() (Daemon, error) { return Daemon{}, errors.New("none") }
		}, "engine thread", Note, []string{"CAP_SYS_NICE"}, 3},
		"ptrace forbidden": {
			func(t *testing.T, m *Machine) { file(t, m.Root, "proc/sys/kernel/yama/ptrace_scope", "3\n") },
			"attach", Limited,
			[]string{"disabled"},
			3,
		},
		"ptrace of children only": {func(t *testing.T, m *Machine) {
			file(t, m.Root, "proc/sys/kernel/yama/ptrace_scope", "1\n")
			m.UID, m.Dir = 4711, "/nowhere/xsched"
		}, "attach", Note, []string{"as root"}, 3},
		"root without ptrace": {func(t *testing.T, m *Machine) {
			file(t, m.Root, "proc/self/status", "Name:\tx\nCapEff:\t00000000a80425fb\n")
			m.UID, m.Dir = 0, "/nowhere/xsched"
		}, "attach", Note, []string{"CAP_SYS_PTRACE"}, 3},
		"ptrace refused": {
			func(_ *testing.T, m *Machine) { m.Kernel = kernel{ptrace: refused} },
			"attach", Limited,
			[]string{"seccomp", "--cap-add SYS_PTRACE"},
			3,
		},
		"ptrace by root only": {func(t *testing.T, m *Machine) {
			file(t, m.Root, "proc/sys/kernel/yama/ptrace_scope", "2\n")
			m.UID, m.Dir = 4711, "/nowhere/xsched"
		}, "attach", Limited, []string{"no program", "as root"}, 3},
		"directory of another user": {func(_ *testing.T, m *Machine) {
			_ = os.Mkdir(filepath.Join(m.Root, "run/xsched"), 0o755)
			m.UID = os.Geteuid() + 1
		}, "runtime folder", Missing, []string{"belongs to uid"}, 0},
		"folder is a link": {
			func(_ *testing.T, m *Machine) { _ = os.Symlink("/tmp", filepath.Join(m.Root, "run/xsched")) },
			"runtime folder", Missing,
			[]string{"link"},
			0,
		},
		"no cache": {
			func(_ *testing.T, m *Machine) { m.Cache = func() (string, error) { return "", errors.New("no HOME") } },
			"cache folder", Missing,
			[]string{"XSCHED_CACHE"},
			0,
		},
		"no shim": {func(_ *testing.T, m *Machine) {
			m.Shim = func() (string, error) { return "", errors.New("built without the C artefacts; run `make build`") }
		}, "shim", Missing, []string{"make build"}, 0},
		"shim can't be loaded": {
			func(_ *testing.T, m *Machine) {
				m.Load = func(string) error { return errors.New("cannot be preloaded") }
			},
			"shim", Missing,
			[]string{"cannot be preloaded", "noexec"},
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine(t)
			c.change(t, &m)
			r := Examine(m)
			if r.OK != (c.level != 0) || r.Level != c.level {
				t.Errorf("ok %v, level %d, want level %d: %+v", r.OK, r.Level, c.level, r.Checks)
			}
			for _, got := range r.Checks {
				if got.Name != c.check || got.Status != c.status {
					continue
				}
				if got.Remedy == "" && !strings.HasPrefix(got.Name, "level on") {
					t.Errorf("no remedy: %+v", got)
				}
				for _, w := range c.words {
					if !strings.Contains(got.Detail+" "+got.Remedy, w) {
						t.Errorf("%+v does not say %q", got, w)
					}
				}
				return
			}
			t.Errorf("no check %q with status %q in %+v", c.check, c.status, r.Checks)
		})
	}
}

// busGPU adds a PCI device.
func busGPU(t *testing.T, root, address, vendor, class string) {
	t.Helper()
	file(t, root, "sys/bus/pci/devices/"+address+"/vendor", vendor+"\n")
	file(t, root, "sys/bus/pci/devices/"+address+"/class", class+"\n")
}

// One working driver suffices; defects of the other only limit.
func TestBothDrivers(t *testing.T) {
	m := machine(t)
	amdGPU(t, m.Root)
	if r := Examine(m); !r.OK || r.Level != 3 || len(r.GPUs) != 2 || r.Driver != "580.159.04, amdkfd 6.10.5" {
		t.Errorf("%+v", r)
	}
	_ = os.Remove(filepath.Join(m.Root, "dev/kfd"))
	r := Examine(m)
	limited := 0
	for _, c := range r.Checks {
		if c.Status == Limited {
			limited++
		}
	}
	if !r.OK || r.Level != 3 || limited != 1 {
		t.Errorf("%+v", r)
	}
}

// A host without any driver gets one message.
func TestNoDriver(t *testing.T) {
	m := machine(t)
	_ = os.RemoveAll(filepath.Join(m.Root, "proc/driver"))
	n := 0
	for _, c := range Examine(m).Checks {
		if c.Status == Missing {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d checks are missing, want 1", n)
	}
}

// The real kernel probes work and leave nothing behind.
func TestThisKernel(t *testing.T) {
	before, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	k := ThisKernel{}
	for name, ask := range map[string]func() error{
		"pidfd": k.Pidfd, "pidfd_getfd": k.PidfdGetfd, "seals": k.MemfdSeals, "peer pidfd": k.PeerPidfd,
		"ptrace": k.Ptrace, "realtime": k.Realtime, "nice": k.Nice,
	} {
		t.Logf("%s: %v", name, ask())
	}
	if OpenNode("/nowhere/at/all") == nil || AskNode("/nowhere/at/all", 0, make([]byte, 8)) == nil {
		t.Error("opened a missing node")
	}
	if err := AskNode("/dev/null", 0x80084B01, make([]byte, 8)); !errors.Is(err, syscall.ENOTTY) {
		t.Errorf("a node without that request answered %v", err)
	}
	if err := Preload("/nowhere/libnothing.so"); err == nil {
		t.Error("loaded a missing library")
	}
	after, err := os.ReadDir("/proc/self/fd")
	if err != nil || len(after) > len(before)+1 { // the Go runtime's poller may have opened one
		t.Errorf("%d descriptors, were %d (%v)", len(after), len(before), err)
	}
}
