// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/model"
)

// Users finds the processes with a context on each GPU, as far as permissions allow, by mappings of
// the GPU's device file. Processes that only query the driver, such as nvidia-smi, map none.
// Managed processes are excluded, and their children, which inherit unusable mappings and connect
// on first use.
func (d *Driver) Users(managed map[int]bool) map[model.DeviceID][]int {
	return System{Root: "/"}.users(managed, d.mapping())
}

// UsedBy returns the GPUs on which a process has a context.
func (d *Driver) UsedBy(pid int) []model.DeviceID {
	return slices.Sorted(maps.Keys(System{Root: "/"}.mapsOf(pid, d.mapping())))
}

// mapping parses the name of a mapping of process pid; false: no mapping of this driver's GPUs.
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

// mapped recognizes a context's memory on the virtual GPU: vgpu:PID:GPU:SOCKET. The device process
// maps it too.
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

// users scans all processes.
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

// testName is the test program's comm.
const testName = "xsched-selftest"

// unpackedTest is the path of an unpacked test program: a folder named by its content.
var unpackedTest = regexp.MustCompile(`/[0-9a-f]{16}/selftest( \(deleted\))?$`)

// isSelfTest recognizes a self-test of this daemon or of `xsched doctor`. Only this user's and root's
// count, so that no other user can hide a tenant. The owner of the folder in /proc would be root for
// any process that is not dumpable.
func (s System) isSelfTest(pid int) bool {
	dir := s.path(fmt.Sprintf("proc/%d", pid))
	if comm, err := os.ReadFile(dir + "/comm"); err != nil || string(comm) != testName+"\n" {
		return false
	}
	if exe, err := os.Readlink(dir + "/exe"); err != nil || !unpackedTest.MatchString(exe) {
		return false
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			fields := strings.Fields(ids)
			return len(fields) > 0 && (fields[0] == "0" || fields[0] == strconv.Itoa(os.Geteuid()))
		}
	}
	return false
}

// mapsOf returns the GPUs that a process has mapped.
func (s System) mapsOf(pid int, m mapping) map[model.DeviceID]bool {
	dir := s.path(filepath.Join("proc", strconv.Itoa(pid)))
	if _, err := os.Readlink(dir + "/exe"); err != nil {
		return nil // a kernel thread, or another user's process
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

// descends reports whether a process descends from a managed one.
func (s System) descends(pid int, managed map[int]bool, parents map[int]int) bool {
	for range 64 {
		parent, known := parents[pid]
		if !known {
			b, _ := os.ReadFile(s.path(fmt.Sprintf("proc/%d/stat", pid)))
			// The name may contain anything; the parent is the second word after it.
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
