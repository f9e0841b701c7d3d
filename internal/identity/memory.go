// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memoryFiles are the files of one version of control groups.
type memoryFiles struct{ root, limit, used, cache string }

var (
	memoryV2 = memoryFiles{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"}
	memoryV1 = memoryFiles{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
)

// maxMemoryGroups bounds the control groups above a process.
const maxMemoryGroups = 32

// MemoryLimit returns the limit of the control group above a process that has the least memory left, and what of
// it is in use and can't be reclaimed easily. False: there is no limit, or none that this process can see.
func MemoryLimit(pid int) (limit, used int64, ok bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return 0, 0, false
	}
	for _, h := range parseCgroups(string(text)) {
		files := memoryV2
		switch {
		case h.name == "memory":
			files = memoryV1
		case h.name != "":
			continue
		}
		if limit, used, ok = files.tightest(h.path); ok {
			return limit, used, true
		}
	}
	return 0, 0, false
}

// tightest looks at a control group and those above it.
func (f *memoryFiles) tightest(path string) (limit, used int64, ok bool) {
	path = filepath.Clean("/" + path) // "/.." is above the root of this namespace
	for range maxMemoryGroups {
		folder := filepath.Join(f.root, path)
		if most, err := readNumber(filepath.Join(folder, f.limit)); err == nil && most < 1<<60 {
			if now, err := readNumber(filepath.Join(folder, f.used)); err == nil {
				now = max(0, now-f.reclaimable(folder))
				if !ok || most-now < limit-used {
					limit, used, ok = most, now, true
				}
			}
		}
		if path == "/" {
			break
		}
		path = filepath.Dir(path)
	}
	return limit, used, ok
}

// reclaimable is the page cache that the kernel drops first.
func (f *memoryFiles) reclaimable(folder string) int64 {
	text, _ := os.ReadFile(filepath.Join(folder, "memory.stat"))
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, f.cache+" "); found {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// readNumber fails for "max".
func readNumber(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
