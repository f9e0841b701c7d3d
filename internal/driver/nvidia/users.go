// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/model"
)

// Users says which processes have a context on which GPU, as far as this user may see: a context's
// doorbells are mapped from the GPU's own file. Processes that only ask the driver (nvidia-smi,
// the persistence daemon) map none. managed are left out, and their children: those inherit mappings
// that they can't use, and join when they use the GPU themselves.
func (d *Driver) Users(managed map[int]bool) map[model.DeviceID][]int {
	return System{Root: "/"}.users(managed, d.mapping())
}

// mapping reads the name of a mapping of process pid; false: it is not one of a GPU of this driver.
type mapping func(pid int, name string) (model.DeviceID, bool)

func (d *Driver) mapping() mapping {
	if t, ok := d.transport.(*virtualTransport); ok {
		return t.mapped
	}
	byName := map[string]model.DeviceID{}
	for _, g := range (System{Root: "/"}).GPUs() {
		if id, err := model.ParseDeviceID(g.PCI); err == nil && g.Minor >= 0 {
			byName[fmt.Sprintf("/dev/nvidia%d", g.Minor)] = id
		}
	}
	return func(_ int, name string) (model.DeviceID, bool) {
		id, ok := byName[name]
		return id, ok
	}
}

// mapped knows the memory that the virtual GPU gives a context: vgpu:PID:GPU:SOCKET. The device
// process itself maps it too.
func (t *virtualTransport) mapped(pid int, name string) (model.DeviceID, bool) {
	rest, ok := strings.CutPrefix(name, "/memfd:vgpu:")
	if !ok {
		return 0, false
	}
	server, rest, _ := strings.Cut(rest, ":")
	const pciBytes = len("0000:01:00.0:")
	if server == strconv.Itoa(pid) || len(rest) < pciBytes || !strings.HasPrefix(t.path, strings.TrimSuffix(rest[pciBytes:], " (deleted)")) {
		return 0, false
	}
	id, err := model.ParseDeviceID(rest[:pciBytes-1])
	return id, err == nil
}

// users looks at all processes.
func (s System) users(managed map[int]bool, m mapping) map[model.DeviceID][]int {
	out := map[model.DeviceID][]int{}
	entries, _ := os.ReadDir(s.path("proc"))
	parents := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || managed[pid] || s.isSelfTest(pid) {
			continue
		}
		for id := range s.mapsOf(pid, m) {
			if !s.descends(pid, managed, parents) {
				out[id] = append(out[id], pid)
			}
		}
	}
	for _, pids := range out {
		slices.Sort(pids)
	}
	return out
}

// mapsOf is the GPUs that a process has mapped something of.
func (s System) mapsOf(pid int, m mapping) map[model.DeviceID]bool {
	dir := s.path(filepath.Join("proc", strconv.Itoa(pid)))
	if _, err := os.Readlink(dir + "/exe"); err != nil {
		return nil // a kernel thread, or another user's
	}
	f, err := os.Open(dir + "/maps")
	if err != nil {
		return nil
	}
	defer f.Close()
	var out map[model.DeviceID]bool
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// address perms offset dev inode name
		_, name, found := strings.Cut(lines.Text(), "/")
		if !found {
			continue
		}
		if id, ok := m(pid, "/"+name); ok {
			if out == nil {
				out = map[model.DeviceID]bool{}
			}
			out[id] = true
		}
	}
	return out
}

// descends says whether a process was started by one of those.
func (s System) descends(pid int, managed map[int]bool, parents map[int]int) bool {
	for range 64 {
		parent, known := parents[pid]
		if !known {
			b, _ := os.ReadFile(s.path(fmt.Sprintf("proc/%d/stat", pid)))
			// The name may hold anything; the parent is the second word behind it.
			fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
			if len(fields) > 1 {
				parent, _ = strconv.Atoi(fields[1])
			}
			parents[pid] = parent
		}
		if parent <= 1 {
			return false
		}
		if managed[parent] {
			return true
		}
		pid = parent
	}
	return false
}
