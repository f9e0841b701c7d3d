// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"xsched/internal/bench"
)

// Usage is what one process held at the start and at the end of the measurement.
type Usage struct {
	Name     string    `json:"name"`
	PID      int       `json:"pid"`
	Files    [2]int    `json:"open_files"`
	Threads  [2]int    `json:"threads"`
	Resident [2]uint64 `json:"resident_bytes"`
}

// held is one reading; ok is false if the process has ended.
type held struct {
	files, threads int
	resident       uint64
}

func read(pid int) (held, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return held{}, false
	}
	text, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return held{}, false
	}
	h := held{files: len(files)}
	for line := range bytes.Lines(text) {
		name, value, _ := strings.Cut(string(line), ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		switch n, _ := strconv.ParseUint(fields[0], 10, 64); name {
		case "Threads":
			h.threads = int(n)
		case "VmRSS":
			h.resident = n << 10
		}
	}
	return h, true
}

// usage reads the daemon and the programs; at is 0 at the start and 1 at the end.
func (c *colocation) usage(at int) {
	if at == 0 {
		names := map[int]string{}
		c.report.Usage = []Usage{}
		order := []int{c.rig.Serve.PID()}
		names[order[0]] = "daemon"
		for _, s := range []*side{c.online, c.offline} {
			for pid := range s.pids {
				order = append(order, pid)
				names[pid] = s.name
			}
		}
		for _, pid := range order {
			c.report.Usage = append(c.report.Usage, Usage{Name: names[pid], PID: pid})
		}
	}
	for i := range c.report.Usage {
		u := &c.report.Usage[i]
		if h, ok := read(u.PID); ok { // else it has ended, and its last values stay
			u.Files[at], u.Threads[at], u.Resident[at] = h.files, h.threads, h.resident
		}
	}
}

// slack is how much may grow without a leak: a connection of a reader, a thread of the Go runtime, a
// call to the virtual device under way.
const slack = 8

// leaked names what grew. Memory is reported but not judged: a garbage collector decides about it.
func leaked(list []Usage) (out []string) {
	for _, u := range list {
		for what, n := range map[string][2]int{"open files": u.Files, "threads": u.Threads} {
			if n[1] > n[0]+slack {
				out = append(out, fmt.Sprintf("%s of the %s grew from %d to %d", what, u.Name, n[0], n[1]))
			}
		}
	}
	return out
}

func mib(bytes uint64) float64 { return float64(bytes) / (1 << 20) }

// remaps returns the device's count of remaps; 0 if it has none.
func (c *colocation) remaps() (uint64, error) {
	d, ok := c.rig.Device.(bench.VGPU)
	if !ok {
		return 0, nil
	}
	n, err := d.Remaps()
	if err != nil {
		return 0, fmt.Errorf("read the device's figures: %w", err)
	}
	return n, nil
}
