// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/identity"
)

// System reads the machine's files below a root, which tests replace.
type System struct{ Root string }

func (s System) path(name string) string { return filepath.Join(s.Root, name) }

// GPU is one device of the driver.
type GPU struct {
	PCI   string `json:"pci"`
	Name  string `json:"name"`
	Minor int    `json:"minor"` // N of /dev/nvidiaN; -1: unknown
	UUID  string `json:"uuid,omitempty"`
}

// GPUs lists the driver's GPUs by PCI address.
func (s System) GPUs() []GPU {
	var out []GPU
	entries, _ := os.ReadDir(s.path("proc/driver/nvidia/gpus"))
	for _, e := range entries {
		g := GPU{PCI: e.Name(), Minor: -1}
		b, _ := os.ReadFile(s.path("proc/driver/nvidia/gpus/" + e.Name() + "/information"))
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(line, ":")
			value = strings.TrimSpace(value)
			switch strings.TrimSpace(key) {
			case "Model":
				g.Name = value
			case "GPU UUID":
				g.UUID = value
			case "Device Minor":
				if n, err := strconv.Atoi(value); err == nil {
					g.Minor = n
				}
			}
		}
		out = append(out, g)
	}
	return out
}

// MPS is the visible state of NVIDIA's multi-process service.
type MPS struct {
	Servers []int // processes that own the channels of all their clients
	Control int   // control daemon, which starts servers; 0: none
	all     []int
}

// Running reports whether new programs become MPS clients.
func (m MPS) Running() bool { return len(m.Servers) > 0 || m.Control != 0 }

// DefaultMPSPipe is the pipe directory without CUDA_MPS_PIPE_DIRECTORY.
const DefaultMPSPipe = "/tmp/nvidia-mps"

// MPS finds the service's processes: they have the service's name, and use a GPU or belong to the administrator.
func (s System) MPS() MPS {
	var m MPS
	entries, _ := os.ReadDir(s.path("proc"))
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// Filter by comm first: it is truncated, but cheap to read.
		comm, err := os.ReadFile(s.path("proc/" + e.Name() + "/comm"))
		if err != nil || !strings.HasPrefix(string(comm), "nvidia-cuda-mps") {
			continue
		}
		if !s.holdsGPU(e.Name()) && !officialMPS(pid) {
			continue // every user can give a process this name
		}
		m.all = append(m.all, pid)
		command, _ := os.ReadFile(s.path("proc/" + e.Name() + "/cmdline"))
		name, _, _ := strings.Cut(string(command), "\x00")
		if filepath.Base(name) == "nvidia-cuda-mps-control" {
			m.Control = pid
		} else {
			m.Servers = append(m.Servers, pid)
		}
	}
	slices.Sort(m.Servers)
	return m
}

// holdsGPU reports whether a process has a file of the driver open, or may have: its files are hidden from
// this user. Links do not count: a container may have any file in its /dev.
func (s System) holdsGPU(pid string) bool {
	folder := s.path("proc/" + pid + "/fd")
	files, err := os.ReadDir(folder)
	if err != nil {
		return errors.Is(err, fs.ErrPermission)
	}
	majors := s.majors()
	for _, f := range files {
		var st unix.Statx_t
		// Without asking the server of a file, which may not answer.
		err := unix.Statx(unix.AT_FDCWD, folder+"/"+f.Name(), unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		if errors.Is(err, fs.ErrPermission) { // of root without the right to trace
			return true
		}
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && slices.Contains(majors, st.Rdev_major) && !s.pathOnly(pid, f.Name()) {
			return true
		}
	}
	return false
}

// majors lists the major numbers of the driver's device files.
func (s System) majors() []uint32 {
	var out []uint32
	b, _ := os.ReadFile(s.path("proc/devices"))
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 2 || !strings.HasPrefix(f[1], "nvidia") {
			continue
		}
		if n, err := strconv.ParseUint(f[0], 10, 32); err == nil {
			out = append(out, uint32(n))
		}
	}
	return out
}

// pathOnly reports whether a file is open as a path, which needs no right to the device.
func (s System) pathOnly(pid, fd string) bool {
	b, _ := os.ReadFile(s.path("proc/" + pid + "/fdinfo/" + fd))
	for line := range strings.Lines(string(b)) {
		if flags, ok := strings.CutPrefix(line, "flags:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64)
			return err != nil || n&unix.O_PATH != 0
		}
	}
	return true // it is closed
}

// MPSPipe reports a control pipe in pipeDir (empty: the default). Outside this pid namespace only
// the pipe shows a server; a dead server may leave it behind.
func (s System) MPSPipe(pipeDir string) bool {
	if pipeDir == "" {
		pipeDir = DefaultMPSPipe
	}
	_, err := os.Stat(s.path(pipeDir + "/control"))
	return err == nil
}

// MIG lists the partitioned GPUs by minor number.
func (s System) MIG() []int {
	var out []int
	dirs, _ := filepath.Glob(s.path("proc/driver/nvidia/capabilities/gpu*/mig/gi*"))
	for _, d := range dirs {
		name := filepath.Base(filepath.Dir(filepath.Dir(d)))
		if n, err := strconv.Atoi(strings.TrimPrefix(name, "gpu")); err == nil && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// mpsAge is the lifetime of a cached MPS state.
const mpsAge = 2 * time.Second

// mpsWatch caches the MPS state, because a check reads a file per process.
type mpsWatch struct {
	system System
	// official reports whether the administrator started a process of the service; nil: officialMPS.
	official func(pid int) bool

	mu    sync.Mutex
	asked time.Time
	known atomic.Pointer[MPS] // lock-free, so that readers never wait for a check
	ours  atomic.Bool         // the administrator, or the daemon's user, runs the service
}

// look refreshes an outdated state; it may block.
func (w *mpsWatch) look() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.asked.IsZero() && time.Since(w.asked) < mpsAge {
		return
	}
	known := w.system.MPS()
	w.known.Store(&known)
	official := w.official
	if official == nil {
		official = officialMPS
	}
	w.ours.Store(slices.ContainsFunc(known.all, official))
	w.asked = time.Now()
}

// reason explains why a process has no channels of its own; empty without MPS.
func (w *mpsWatch) reason() string {
	if w == nil {
		return ""
	}
	switch known := w.known.Load(); {
	case known == nil:
	case len(known.Servers) > 0:
		return fmt.Sprintf("MPS: the channels belong to the MPS server (pid %d)", known.Servers[0])
	case known.Running():
		return "MPS: the channels belong to the MPS server"
	}
	return ""
}

// officialMPS reports whether a process of the service belongs to root on the host, or to the
// daemon's user. Every user can give a process the service's name.
func officialMPS(pid int) bool {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(pidfd) }()
	// The file, because a link can give a set-user-ID program of root another name.
	file, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || !strings.HasPrefix(filepath.Base(file), "nvidia-cuda-mps") {
		return false
	}
	p, err := identity.OfProcess(pidfd) // it lives, so the file was its own
	return err == nil && (p.User.Root() || p.User == identity.OnHost(os.Geteuid()))
}

// owns reports whether programs may have no objects of their own, because of a service that the
// administrator runs.
func (w *mpsWatch) owns() bool { return w != nil && w.ours.Load() }
