// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"maps"
	"math"
	"os"
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
	return d.scans.users(System{Root: "/"}, managed, d.mapping(), userBytes)
}

// allUsers is Users without exceptions and limits, for callers that need the whole answer once.
func (d *Driver) allUsers() map[model.DeviceID][]int {
	return new(scanner).users(System{Root: "/"}, nil, d.mapping(), math.MaxInt)
}

// UsedBy returns the GPUs on which a process has a context, as far as userBytes show it.
func (d *Driver) UsedBy(pid int) []model.DeviceID {
	p := scanned{pid: pid}
	if !p.open(System{Root: "/"}) {
		return nil
	}
	defer p.close()
	p.read(d.mapping(), userBytes)
	return slices.Sorted(maps.Keys(p.gpus))
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
	uid := s.uidOf(pid)
	return uid == 0 || uid == os.Geteuid()
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
