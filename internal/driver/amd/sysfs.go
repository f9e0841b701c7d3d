// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// SysfsRoot is the directory that the readers expect as their file system.
const SysfsRoot = "/sys/class/kfd/kfd"

// QueueType is the driver's internal enum, which differs from CREATE_QUEUE's. From
// drivers/gpu/drm/amd/amdkfd/kfd_priv.h:
type QueueType int

// String names the type.
func (t QueueType) String() string {
	names := [...]string{"compute", "sdma", "hiq", "diq", "sdma-xgmi", "sdma-by-engine"}
	if t < 0 || int(t) >= len(names) {
		return "type " + strconv.Itoa(int(t))
	}
	return names[t]
}

// ProcQueue is a directory proc/<pid>/queues/<id>.
type ProcQueue struct {
	ID    int       `json:"id"` // the ioctl id
	Bytes uint64    `json:"bytes"`
	Type  QueueType `json:"type"`
	GPUID uint32    `json:"gpu_id"`

	inode uint64 // of the directory; 0: unknown
}

// ProcGPU is a process's usage of one GPU; -1: unknown.
type ProcGPU struct {
	GPUID       uint32 `json:"gpu_id"`
	VRAMBytes   int64  `json:"vram_bytes"`
	SDMAUse     int64  `json:"sdma_use"`
	EvictedMS   int64  `json:"evicted_ms"`
	CUOccupancy int64  `json:"cu_occupancy"`
	Faults      int64  `json:"faults"`
	PageIn      int64  `json:"page_in"`
	PageOut     int64  `json:"page_out"`
}

// ProcFS is a directory proc/<pid>.
type ProcFS struct {
	PID    int         `json:"pid"` // in the host's namespace
	PASID  uint64      `json:"pasid"`
	Queues []ProcQueue `json:"queues"`
	GPUs   []ProcGPU   `json:"gpus"`
}

// ReadProcess reads proc/<pid> of root. A queue destroyed meanwhile is omitted.
func ReadProcess(root fs.FS, pid int) (ProcFS, error) {
	folder := path.Join("proc", strconv.Itoa(pid))
	p := ProcFS{PID: pid}
	entries, err := fs.ReadDir(root, folder)
	if err != nil {
		return p, fmt.Errorf("read process %d: %w", pid, err)
	}
	gpus := map[uint32]*ProcGPU{}
	for _, e := range entries {
		if err := p.entry(root, folder, e.Name(), gpus); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return p, fmt.Errorf("read process %d: %w", pid, err)
		}
	}
	for _, g := range gpus {
		p.GPUs = append(p.GPUs, *g)
	}
	slices.SortFunc(p.GPUs, func(a, b ProcGPU) int { return cmp.Compare(a.GPUID, b.GPUID) })
	slices.SortFunc(p.Queues, func(a, b ProcQueue) int { return cmp.Compare(a.ID, b.ID) })
	return p, nil
}

func (p *ProcFS) entry(root fs.FS, folder, name string, gpus map[uint32]*ProcGPU) error {
	if name == "pasid" {
		v, err := readNumber(root, path.Join(folder, name))
		p.PASID = uint64(v)
		return err
	}
	if name == "queues" {
		return p.readQueues(root, path.Join(folder, name))
	}
	kind, id, found := strings.Cut(name, "_")
	number, err := strconv.ParseUint(id, 10, 32)
	if !found || err != nil {
		return nil // from a later driver
	}
	g := gpus[uint32(number)]
	if g == nil {
		g = &ProcGPU{GPUID: uint32(number), VRAMBytes: -1, SDMAUse: -1, EvictedMS: -1, CUOccupancy: -1, Faults: -1, PageIn: -1, PageOut: -1}
		gpus[uint32(number)] = g
	}
	for file, into := range map[string]*int64{
		"vram": &g.VRAMBytes, "sdma": &g.SDMAUse,
		"stats/evicted_ms": &g.EvictedMS, "stats/cu_occupancy": &g.CUOccupancy,
		"counters/faults": &g.Faults, "counters/page_in": &g.PageIn, "counters/page_out": &g.PageOut,
	} {
		first, rest, _ := strings.Cut(file, "/")
		if first != kind {
			continue
		}
		v, err := readNumber(root, path.Join(folder, name, rest))
		switch {
		case err == nil:
			*into = v
		case !errors.Is(err, fs.ErrNotExist): // cu_occupancy is optional
			return err
		}
	}
	return nil
}

func (p *ProcFS) readQueues(root fs.FS, folder string) error {
	entries, err := fs.ReadDir(root, folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 10, 31)
		if err != nil {
			continue
		}
		var values [3]int64
		for i, file := range []string{"size", "type", "gpuid"} {
			if values[i], err = readNumber(root, path.Join(folder, e.Name(), file)); err != nil {
				break
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		q := ProcQueue{ID: int(id), Bytes: uint64(values[0]), Type: QueueType(values[1]), GPUID: uint32(values[2])}
		if info, err := fs.Stat(root, path.Join(folder, e.Name())); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				q.inode = st.Ino
			}
		}
		p.Queues = append(p.Queues, q)
	}
	return nil
}

// readNumber reads a file with one decimal number, with or without a newline.
func readNumber(root fs.FS, name string) (int64, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, err
	}
	v, err := ParseNumber(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

// ParseNumber parses a sysfs file that holds one number.
func ParseNumber(text []byte) (int64, error) {
	s := strings.TrimSpace(string(text))
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 {
		return 0, fmt.Errorf("number %.24q: %w", s, ErrFormat)
	}
	return v, nil
}
