// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
)

// Sources are the file systems that expose queues.
type Sources struct {
	Sysfs fs.FS // /sys/class/kfd/kfd
	Debug fs.FS // /sys/kernel/debug/kfd; root only
	Proc  fs.FS // /proc
	// Ordered: Sysfs is the kernel's own, so inode numbers follow creation order. A copy has none.
	Ordered bool
}

// SourcesAt returns the sources below a root, "/" on a real system. A virtual device's root has no
// /proc, so the machine's is used.
func SourcesAt(root string) Sources {
	proc := filepath.Join(root, "/proc")
	if _, err := os.Stat(proc); err != nil {
		proc = "/proc"
	}
	sysfs := filepath.Join(root, SysfsRoot)
	var st unix.Statfs_t
	return Sources{
		Sysfs:   os.DirFS(sysfs),
		Debug:   os.DirFS(filepath.Join(root, "/sys/kernel/debug/kfd")),
		Proc:    os.DirFS(proc),
		Ordered: unix.Statfs(sysfs, &st) == nil && st.Type == unix.SYSFS_MAGIC,
	}
}

// Errors of the finder; test with errors.Is.
var (
	ErrNoDriver  = errors.New("no amdkfd driver here")
	ErrNotListed = errors.New("not listed by the driver")
	ErrNotDumped = errors.New("not in the dump of queue descriptors")
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
	Ring uint64 `json:"ring"`
	// Unknown is why Ring is 0.
	Unknown  string  `json:"ring_unknown,omitempty"`
	Read     *uint64 `json:"rptr,omitempty"` // in packets
	Write    *uint64 `json:"wptr,omitempty"`
	Priority *uint32 `json:"priority,omitempty"`
	// Active: the descriptor says the queue exists. Loaded: a hardware slot holds it now.
	Active  *bool    `json:"active,omitempty"`
	Loaded  *bool    `json:"loaded,omitempty"`
	Sources []string `json:"sources"`
	// Log is the runtime log's entry for this ring.
	Log *LoggedQueue `json:"log,omitempty"`

	created     uint64   // increases with creation; 0: unknown
	descriptors []uint64 // addresses, one per XCC: unlike a ring's, unique on a GPU
}

// Found is a process with its queues.
type Found struct {
	PID     int             `json:"pid"`      // in the host's namespace, as the driver uses
	Listed  bool            `json:"listed"`   // false: only a log or a daemon knows the process
	PIDs    []int           `json:"all_pids"` // in each namespace, the host's first
	Queues  []FoundQueue    `json:"queues"`
	Memory  []ProcGPU       `json:"memory"`
	Notes   []driver.Remark `json:"notes"`
	Command string          `json:"command,omitempty"`
}

// Find merges all sources about a process. The pid may be the host's or, for a container, the inner
// one. Without permissions, the notes name what is missing.
func (s Sources) Find(pid int) (Found, error) {
	f := Found{Listed: true, Queues: []FoundQueue{}, Notes: []driver.Remark{}}
	if _, err := fs.Stat(s.Sysfs, "proc"); err != nil {
		return s.findInDumps(pid)
	}
	var err error
	if f.PID, f.PIDs, err = s.host(pid); err != nil {
		return f, err
	}
	if b, err := fs.ReadFile(s.Proc, path.Join(strconv.Itoa(f.PID), "cmdline")); err == nil {
		f.Command = string(bytes.TrimSpace(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
	}
	if err := s.readQueues(&f); err != nil {
		return f, err
	}
	f.load(s.slots(&f))
	nodes, err := ReadTopology(s.Sysfs)
	f.note("topology", err)
	for _, n := range nodes {
		for i := range f.Queues {
			if q := &f.Queues[i]; q.GPUID == n.GPUID {
				q.PCI, q.Target = n.PCI(), n.Target()
			}
		}
	}
	return f, nil
}

// findInDumps finds a process in saved dumps alone, without numbers of its queues.
func (s Sources) findInDumps(pid int) (Found, error) {
	f := Found{PID: pid, PIDs: []int{pid}, Listed: true, Queues: []FoundQueue{}, Notes: []driver.Remark{}}
	if _, err := fs.Stat(s.Debug, mqdsFile); err != nil {
		return f, fmt.Errorf("find queues: %w", ErrNoDriver)
	}
	list, reason := s.descriptors(&f)
	switch reason {
	case "":
	case reasonNoProcess:
		return f, fmt.Errorf("find process %d: %w", pid, ErrNotDumped)
	case reasonCut:
		return f, fmt.Errorf("find process %d: %w", pid, ErrCut)
	default:
		return f, fmt.Errorf("find process %d: %s", pid, f.Notes[len(f.Notes)-1].Text)
	}
	for _, d := range list {
		f.addUnnumbered(d)
	}
	f.load(s.slots(&f))
	f.Notes = append(f.Notes, driver.Remark{Source: "sysfs", Text: "not there: a dump alone has no queue numbers"})
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
