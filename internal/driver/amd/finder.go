// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"xsched/internal/driver"
)

// Sources are the file systems that expose queues.
type Sources struct {
	Sysfs fs.FS // /sys/class/kfd/kfd
	Debug fs.FS // /sys/kernel/debug/kfd; root only
	Proc  fs.FS // /proc
}

// SourcesAt returns the sources below a root, "/" on a real system. A virtual device's root has no
// /proc, so the machine's is used.
func SourcesAt(root string) Sources {
	proc := filepath.Join(root, "/proc")
	if _, err := os.Stat(proc); err != nil {
		proc = "/proc"
	}
	return Sources{
		Sysfs: os.DirFS(filepath.Join(root, SysfsRoot)),
		Debug: os.DirFS(filepath.Join(root, "/sys/kernel/debug/kfd")),
		Proc:  os.DirFS(proc),
	}
}

// Errors of the finder; test with errors.Is.
var (
	ErrNoDriver  = errors.New("no amdkfd driver here")
	ErrNotListed = errors.New("not listed by the driver")
	ErrAmbiguous = errors.New("several processes have that pid")
)

// FoundQueue is a hardware queue as the readable sources show it.
type FoundQueue struct {
	ID     int    `json:"id"` // the ioctl id; -1: unknown
	Type   string `json:"type"`
	GPUID  uint32 `json:"gpu_id"`
	PCI    string `json:"pci,omitempty"`
	Target string `json:"target,omitempty"` // gfx942
	Bytes  uint64 `json:"bytes"`
	// Ring is the address that the runtime's log calls HWq; 0: unknown.
	Ring     uint64  `json:"ring"`
	Read     *uint64 `json:"rptr,omitempty"` // in packets
	Write    *uint64 `json:"wptr,omitempty"`
	Priority *uint32 `json:"priority,omitempty"`
	// Active: the descriptor says the queue exists. Loaded: a hardware slot holds it now.
	Active  *bool    `json:"active,omitempty"`
	Loaded  *bool    `json:"loaded,omitempty"`
	Sources []string `json:"sources"`
	// Log is the runtime log's entry for this ring.
	Log *LoggedQueue `json:"log,omitempty"`
}

// LoggedQueue is a queue in the runtime's log, identified by its ring address.
type LoggedQueue struct {
	Ring     uint64   `json:"-"`
	Software []string `json:"swq,omitempty"` // streams mapped to the queue
	HSAID    int32    `json:"hsa_id"`        // the runtime's counter, not the driver's number
	Priority string   `json:"priority,omitempty"`
	Kernels  uint64   `json:"kernels"`
}

// JoinLog merges a log by ring address and reports unmatched queues.
func (f *Found) JoinLog(logged []LoggedQueue) {
	apart := 0
	for _, l := range logged {
		i := slices.IndexFunc(f.Queues, func(q FoundQueue) bool { return q.Ring != 0 && q.Ring == l.Ring })
		if i < 0 {
			apart++
			continue
		}
		f.Queues[i].Log = &l
		f.Queues[i].Sources = append(f.Queues[i].Sources, "log")
	}
	if apart > 0 {
		f.Notes = append(f.Notes, driver.Remark{Source: "log", Text: fmt.Sprintf("%d of its %d queues match no known ring: destroyed, from another run, or readable by root only", apart, len(logged))})
	}
}

// Found is a process with its queues.
type Found struct {
	PID     int             `json:"pid"`      // in the host's namespace, as the driver uses
	PIDs    []int           `json:"all_pids"` // in each namespace, the host's first
	Queues  []FoundQueue    `json:"queues"`
	Memory  []ProcGPU       `json:"memory"`
	Notes   []driver.Remark `json:"notes"`
	Command string          `json:"command,omitempty"`
}

// Find merges all sources about a process. The pid may be the host's or, for a container, the inner
// one. Without permissions, the notes name what is missing.
func (s Sources) Find(pid int) (Found, error) {
	f := Found{Queues: []FoundQueue{}, Notes: []driver.Remark{}}
	if _, err := fs.Stat(s.Sysfs, "proc"); err != nil {
		return f, fmt.Errorf("find queues: %w", ErrNoDriver)
	}
	var err error
	if f.PID, f.PIDs, err = s.host(pid); err != nil {
		return f, err
	}
	if b, err := fs.ReadFile(s.Proc, path.Join(strconv.Itoa(f.PID), "cmdline")); err == nil {
		f.Command = string(bytes.TrimSpace(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
	}
	p, err := ReadProcess(s.Sysfs, f.PID)
	if err != nil {
		return f, err
	}
	f.Memory = p.GPUs
	nodes, err := ReadTopology(s.Sysfs)
	f.note("topology", err)
	byGPU := map[uint32]Node{}
	for _, n := range nodes {
		byGPU[n.GPUID] = n
	}
	for _, q := range p.Queues {
		found := FoundQueue{ID: q.ID, Type: q.Type.String(), GPUID: q.GPUID, Bytes: q.Bytes, Sources: []string{"sysfs"}}
		f.Queues = append(f.Queues, found)
	}
	f.join(s.descriptors(&f))
	f.load(s.slots(&f))
	for i := range f.Queues {
		if n, ok := byGPU[f.Queues[i].GPUID]; ok {
			f.Queues[i].PCI, f.Queues[i].Target = n.PCI(), n.Target()
		}
	}
	return f, nil
}

func (f *Found) note(source string, err error) {
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrPermission):
		f.Notes = append(f.Notes, driver.Remark{Source: source, Text: "needs root"})
	case errors.Is(err, fs.ErrNotExist):
		f.Notes = append(f.Notes, driver.Remark{Source: source, Text: "not there"})
	default:
		f.Notes = append(f.Notes, driver.Remark{Source: source, Text: err.Error()})
	}
}

// host finds the process that the driver lists for a pid, and all its pids.
func (s Sources) host(pid int) (int, []int, error) {
	listed := func(pid int) bool {
		_, err := fs.Stat(s.Sysfs, path.Join("proc", strconv.Itoa(pid)))
		return err == nil
	}
	if listed(pid) {
		if all := s.pids(pid); len(all) > 0 {
			return pid, all, nil
		}
		return pid, []int{pid}, nil
	}
	entries, err := fs.ReadDir(s.Sysfs, "proc")
	if err != nil {
		return 0, nil, fmt.Errorf("find process %d: %w", pid, err)
	}
	var matches [][]int
	for _, e := range entries {
		host, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if all := s.pids(host); slices.Contains(all, pid) {
			matches = append(matches, all)
		}
	}
	switch len(matches) {
	case 1:
		return matches[0][0], matches[0], nil
	case 0:
		return 0, nil, fmt.Errorf("find process %d: %w", pid, ErrNotListed)
	}
	hosts := []int{}
	for _, m := range matches {
		hosts = append(hosts, m[0])
	}
	return 0, nil, fmt.Errorf("find process %d, inside a container: %w: on the host %v", pid, ErrAmbiguous, hosts)
}

func (s Sources) pids(pid int) []int {
	b, err := fs.ReadFile(s.Proc, path.Join(strconv.Itoa(pid), "status"))
	if err != nil {
		return nil
	}
	all, _ := ParseNSpid(b)
	return all
}

// descriptors returns the process's entries of the descriptor dump.
func (s Sources) descriptors(f *Found) []MQDQueue {
	file, err := s.Debug.Open("mqds")
	if err != nil {
		f.note("debugfs mqds", err)
		return nil
	}
	defer file.Close()
	all, err := ParseMQDs(file)
	f.note("debugfs mqds", err)
	for _, p := range all {
		if p.PID == f.PID {
			return p.Queues
		}
	}
	return nil
}

// slots returns the hardware slots of all GPUs.
func (s Sources) slots(f *Found) []HQDNode {
	file, err := s.Debug.Open("hqds")
	if err != nil {
		f.note("debugfs hqds", err)
		return nil
	}
	defer file.Close()
	all, err := ParseHQDs(file)
	f.note("debugfs hqds", err)
	return all
}

// join matches descriptors, which have no ids, with the queues of a GPU and kind. Both follow
// creation order until an id is reused. A match by order therefore requires equal sizes throughout;
// otherwise only unique sizes match.
func (f *Found) join(descriptors []MQDQueue) {
	type class struct {
		gpu     uint32
		compute bool
	}
	groups := map[class][]MQDQueue{}
	for _, d := range descriptors {
		c := class{d.GPUID, d.Kind == KindCompute}
		groups[c] = append(groups[c], d)
	}
	mine := map[class][]int{}
	for i, q := range f.Queues {
		c := class{q.GPUID, q.Type == "compute"}
		mine[c] = append(mine[c], i)
	}
	for c, list := range groups {
		if !c.compute {
			continue // copy queue dumps are not decoded
		}
		places := mine[c]
		slices.SortFunc(places, func(a, b int) int { return cmp.Compare(f.Queues[b].ID, f.Queues[a].ID) })
		ordered := len(places) == len(list)
		for i := 0; ordered && i < len(list); i++ {
			ring, ok := list[i].Ring()
			ordered = ok && ring.Bytes == f.Queues[places[i]].Bytes
		}
		for i, d := range list {
			ring, ok := d.Ring()
			if !ok {
				continue
			}
			switch {
			case ordered:
				f.Queues[places[i]].describe(ring)
			default:
				f.joinBySize(places, list, ring, c.gpu)
			}
		}
	}
}

func (f *Found) joinBySize(places []int, list []MQDQueue, ring Ring, gpu uint32) {
	var at []int
	for _, i := range places {
		if f.Queues[i].Bytes == ring.Bytes {
			at = append(at, i)
		}
	}
	same := 0
	for _, d := range list {
		if r, ok := d.Ring(); ok && r.Bytes == ring.Bytes {
			same++
		}
	}
	if len(at) == 1 && same == 1 {
		f.Queues[at[0]].describe(ring)
		return
	}
	q := FoundQueue{ID: -1, Type: "compute", GPUID: gpu, Bytes: ring.Bytes}
	q.describe(ring)
	f.Queues = append(f.Queues, q)
}

func (q *FoundQueue) describe(r Ring) {
	q.Ring = r.Address
	read, write, priority, active := r.ReadPointer/packetDwords, r.WritePointer/packetDwords, r.QueuePriority, r.Active
	q.Read, q.Write, q.Priority, q.Active = &read, &write, &priority, &active
	q.Sources = append(q.Sources, "mqds")
}

// load marks queues in hardware slots, whose pointers are more recent.
func (f *Found) load(nodes []HQDNode) {
	if len(nodes) == 0 {
		return
	}
	for i := range f.Queues {
		q := &f.Queues[i]
		if q.Ring == 0 {
			continue
		}
		loaded := false
		for _, n := range nodes {
			for _, slot := range n.Slots {
				if n.GPUID != q.GPUID || !slot.Loaded() || slot.Ring.Address != q.Ring {
					continue
				}
				loaded = true
				read, write := slot.Ring.ReadPointer/packetDwords, slot.Ring.WritePointer/packetDwords
				q.Read, q.Write = &read, &write
			}
		}
		q.Loaded = &loaded
		q.Sources = append(q.Sources, "hqds")
	}
}
