// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"xsched/internal/model"
)

// Users choose how many processes and mappings they have, so a scan reads a bounded amount for each
// user. The list of 60,000 mappings has 2.9 MB and takes 41 ms on one core: a user who uses up
// userBytes adds about 60 ms to a scan. Four mebibytes are the mappings of ten PyTorch programs.
const (
	userBytes = 4 << 20
	// processBytes is charged for each process: opening its files takes as long as reading 4 KiB.
	processBytes = 4 << 10
)

// scanner repeats scans of all processes. A user's processes beyond the limit keep their last
// result, and the next scan reads them first. New processes come before all others.
type scanner struct {
	mu    sync.Mutex
	scans uint64
	known map[int]*scanned
}

// scanned is a process as far as scans have read it.
type scanned struct {
	pid   int
	inode uint64 // of its folder: another process with the same PID has another one
	owner uint32 // of its folder: changes with the user, except for processes that are not dumpable
	uid   int
	first uint64                  // the first scan that saw it
	last  uint64                  // the last scan that read it to the end; 0: none
	gpus  map[model.DeviceID]bool // as of that scan
	// The unfinished reading, if file is not nil. Each user has at most one.
	file  *os.File
	lines *bufio.Reader
	found map[model.DeviceID]bool
}

// users scans all processes, and reads at most limit bytes for each user.
func (c *scanner) users(s System, managed map[int]bool, m mapping, limit int) map[model.DeviceID][]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scans++
	processes := c.list(s, managed)
	spent, unfinished := map[int]int{}, map[int]*scanned{}
	for _, p := range processes {
		if p.file != nil {
			unfinished[p.uid] = p
		}
	}
	for _, p := range processes {
		if spent[p.uid] >= limit || p.file == nil && !p.open(s) {
			continue
		}
		p.uid = s.uidOf(p.pid)
		done, bytes := p.read(m, limit-spent[p.uid])
		spent[p.uid] += bytes + processBytes
		switch other := unfinished[p.uid]; {
		case done:
			p.last = c.scans
		case other != nil && other != p && other.file != nil:
			p.close() // begins again, so that the user's number of open files is bounded
		default:
			unfinished[p.uid] = p
		}
	}
	return s.unmanaged(c.known, managed)
}

// list returns the processes to read: those never read, the newest first, then those whose last
// reading is oldest.
func (c *scanner) list(s System, managed map[int]bool) []*scanned {
	entries, _ := os.ReadDir(s.path("proc"))
	now := make(map[int]*scanned, len(entries))
	var out []*scanned
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || managed[pid] {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it has ended
		}
		stat := info.Sys().(*syscall.Stat_t)
		p := c.known[pid]
		if p == nil || p.inode != stat.Ino || p.owner != stat.Uid {
			p = &scanned{pid: pid, inode: stat.Ino, owner: stat.Uid, uid: s.uidOf(pid), first: c.scans}
		}
		now[pid] = p
		out = append(out, p)
	}
	for pid, p := range c.known {
		if now[pid] != p {
			p.close()
		}
	}
	c.known = now
	slices.SortFunc(out, func(a, b *scanned) int {
		return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(b.first, a.first), cmp.Compare(a.pid, b.pid))
	})
	return out
}

// lineReaders hold the longest line: a name has at most 4,096 bytes, each escaped as four.
var lineReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 32<<10) }}

// open begins a reading; false: a kernel thread, or a process that the daemon may not read.
func (p *scanned) open(s System) bool {
	dir := s.path(fmt.Sprintf("proc/%d", p.pid))
	if _, err := os.Readlink(dir + "/exe"); err != nil {
		return false
	}
	f, err := os.Open(dir + "/maps")
	if err != nil {
		return false
	}
	p.file, p.lines, p.found = f, lineReaders.Get().(*bufio.Reader), nil
	p.lines.Reset(f)
	return true
}

func (p *scanned) close() {
	if p.file != nil {
		_ = p.file.Close()
		lineReaders.Put(p.lines)
		p.file, p.lines, p.found = nil, nil, nil
	}
}

// read goes on with a reading until limit bytes. A GPU counts as soon as it is found.
func (p *scanned) read(m mapping, limit int) (done bool, bytes int) {
	for bytes < limit {
		line, err := p.lines.ReadSlice('\n')
		bytes += len(line)
		if id, ok := m.of(p.pid, string(line)); ok {
			if p.found == nil {
				p.found = map[model.DeviceID]bool{}
			}
			p.found[id] = true
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			p.gpus = p.found
			p.close()
			return true, bytes
		}
	}
	for id := range p.found {
		if p.gpus = maps.Clone(p.gpus); p.gpus == nil {
			p.gpus = map[model.DeviceID]bool{}
		}
		p.gpus[id] = true
	}
	return false, bytes
}

// of parses a line of a process's maps: address perms offset dev inode name.
func (m mapping) of(pid int, line string) (model.DeviceID, bool) {
	_, name, found := strings.Cut(strings.TrimSuffix(line, "\n"), "/")
	if !found {
		return 0, false
	}
	return m(pid, "/"+name)
}

// uidOf returns the real user of a process; -1: unknown.
func (s System) uidOf(pid int) int {
	status, _ := os.ReadFile(s.path(fmt.Sprintf("proc/%d/status", pid)))
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			if fields := strings.Fields(ids); len(fields) > 0 {
				if uid, err := strconv.Atoi(fields[0]); err == nil {
					return uid
				}
			}
		}
	}
	return -1
}

// unmanaged returns the processes on each GPU, without self-tests and children of managed ones.
func (s System) unmanaged(known map[int]*scanned, managed map[int]bool) map[model.DeviceID][]int {
	out, parents := map[model.DeviceID][]int{}, map[int]int{}
	for pid, p := range known {
		if len(p.gpus) == 0 || s.isSelfTest(pid) || s.descends(pid, managed, parents) {
			continue
		}
		for id := range p.gpus {
			out[id] = append(out[id], pid)
		}
	}
	for _, pids := range out {
		slices.Sort(pids)
	}
	return out
}
