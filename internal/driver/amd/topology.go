// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Node capabilities that matter for suspending queues. From
// drivers/gpu/drm/amd/amdkfd/kfd_topology.h:
const (
	CapTrapDebug     = 0x8000
	CapDebugFirmware = 0x20000000
)

// Node is a directory topology/nodes/<n>. CPUs have GPUID 0.
type Node struct {
	Number     int               `json:"number"`
	GPUID      uint32            `json:"gpu_id"`
	Name       string            `json:"name"`
	Properties map[string]uint64 `json:"properties"`
}

func (n Node) IsGPU() bool { return n.GPUID != 0 }

// Target returns the compiler's name of the chip: 90402 is gfx942.
func (n Node) Target() string {
	v := n.Properties["gfx_target_version"]
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("gfx%d%x%x", v/10000, v/100%100, v%100)
}

// PCI returns the GPU's address, dddd:bb:dd.f.
func (n Node) PCI() string {
	location := n.Properties["location_id"]
	return fmt.Sprintf("%04x:%02x:%02x.%x", n.Properties["domain"], location>>8&0xff, location>>3&0x1f, location&7)
}

// ReadTopology reads topology/nodes of root.
func ReadTopology(root fs.FS) ([]Node, error) {
	entries, err := fs.ReadDir(root, "topology/nodes")
	if err != nil {
		return nil, fmt.Errorf("read topology: %w", err)
	}
	var out []Node
	for _, e := range entries {
		number, err := strconv.ParseUint(e.Name(), 10, 16)
		if err != nil {
			continue
		}
		folder := path.Join("topology/nodes", e.Name())
		n := Node{Number: int(number)}
		id, err := readNumber(root, path.Join(folder, "gpu_id"))
		if err != nil {
			return nil, fmt.Errorf("read topology: %w", err)
		}
		n.GPUID = uint32(id)
		if name, err := fs.ReadFile(root, path.Join(folder, "name")); err == nil {
			n.Name = strings.TrimSpace(string(name))
		}
		text, err := fs.ReadFile(root, path.Join(folder, "properties"))
		if err == nil {
			n.Properties, err = ParseProperties(text)
		}
		if err != nil {
			return nil, fmt.Errorf("read topology: node %d: %w", n.Number, err)
		}
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b Node) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}

// ParseProperties parses lines of "name value".
func ParseProperties(text []byte) (map[string]uint64, error) {
	out := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) != 2 {
			return nil, fmt.Errorf("property %.40q: %w", line, ErrFormat)
		}
		v, err := strconv.ParseUint(words[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("property %.40q: %w", line, ErrFormat)
		}
		out[words[0]] = v
	}
	return out, nil
}

// ParseNSpid parses a process's pids in its namespaces from /proc/<pid>/status, the host's first.
// The driver uses the first, the runtime's log the last.
func ParseNSpid(status []byte) ([]int, error) {
	for line := range strings.Lines(string(status)) {
		rest, ok := strings.CutPrefix(line, "NSpid:")
		if !ok {
			continue
		}
		var out []int
		for word := range strings.FieldsSeq(rest) {
			pid, err := strconv.ParseUint(word, 10, 31)
			if err != nil {
				return nil, fmt.Errorf("pid %.20q: %w", word, ErrFormat)
			}
			out = append(out, int(pid))
		}
		if len(out) == 0 {
			break
		}
		return out, nil
	}
	return nil, fmt.Errorf("no line NSpid: %w", ErrFormat)
}

// statusNumber parses a line with one number from /proc/<pid>/status; 0: none.
func statusNumber(status []byte, name string) int {
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			v, _ := strconv.Atoi(strings.TrimSpace(rest))
			return v
		}
	}
	return 0
}
