// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// folders makes the world's folders. Root's world has small file systems: "run" holds the daemon's
// state, its records of attached programs, its audit log and its recording, "cache" the libraries.
func (w *world) folders() (err error) {
	if w.base, err = os.MkdirTemp("", "xc"); err != nil {
		return err
	}
	w.dir = filepath.Join(w.base, "run")
	for _, dir := range []string{w.base, w.dir, filepath.Join(w.base, "cache"), filepath.Join(w.base, "user")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	if os.Geteuid() != 0 {
		return nil
	}
	if err := os.Chown(filepath.Join(w.base, "user"), secondUser, secondUser); err != nil {
		return err
	}
	for _, name := range disks {
		if path := filepath.Join(w.base, name); unix.Mount("tmpfs", path, "tmpfs", 0, "size=12m,mode=755") == nil {
			w.mounts = append(w.mounts, path)
		}
	}
	w.memory, _ = newMemoryGroup()
	return nil
}

// disks are the folders that have a file system of their own.
var disks = []string{"run", "cache"}

// diskFull fills the file system of a folder.
func diskFull(w *world, f Fault) error {
	if len(w.mounts) == 0 {
		return errors.New("the folder is not a file system of its own")
	}
	path := filepath.Join(w.base, f.Text, "filler"+strconv.Itoa(f.Number))
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<16)
	for err == nil {
		_, err = file.Write(block)
	}
	_ = file.Close()
	time.Sleep(f.duration())
	return os.Remove(path)
}

// memoryGroup is a cgroup for the daemon and its guardian.
type memoryGroup struct {
	path, limit, usage string
	none               string // the value that means no limit
}

var memoryGroups atomic.Int64

// newMemoryGroup makes a group below that of this process, under either version of cgroups.
func newMemoryGroup() (*memoryGroup, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("chaos-%d-%d", os.Getpid(), memoryGroups.Add(1))
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		var g *memoryGroup
		switch f[1] {
		case "memory":
			g = &memoryGroup{filepath.Join("/sys/fs/cgroup/memory", f[2], name), "memory.limit_in_bytes", "memory.usage_in_bytes", "-1"}
		case "":
			g = &memoryGroup{filepath.Join("/sys/fs/cgroup", f[2], name), "memory.max", "memory.current", "max"}
		default:
			continue
		}
		if os.Mkdir(g.path, 0o755) != nil {
			continue
		}
		if g.set(g.none) == nil {
			return g, nil
		}
		g.remove()
	}
	return nil, errors.New("no cgroup with a memory limit")
}

func (g *memoryGroup) set(limit string) error {
	return os.WriteFile(filepath.Join(g.path, g.limit), []byte(limit), 0)
}

// add moves a process into the group. Its later children follow it.
func (g *memoryGroup) add(pid int) {
	if g != nil {
		_ = os.WriteFile(filepath.Join(g.path, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	}
}

func (g *memoryGroup) remove() {
	if g == nil {
		return
	}
	for range 100 { // its last process may not be gone yet
		if os.Remove(g.path) == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// daemonMemory leaves the daemon's cgroup almost no memory beyond what it has, while another user asks
// for much. The kernel may kill the daemon or its guardian.
func daemonMemory(w *world, f Fault) error {
	if w.memory == nil {
		return errors.New("no cgroup with a memory limit")
	}
	text, err := os.ReadFile(filepath.Join(w.memory.path, w.memory.usage))
	if err != nil {
		return err
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return err
	}
	w.unguard(f.duration() + 500*time.Millisecond)
	err = w.memory.set(strconv.FormatInt(used+int64(f.Number%8)<<18, 10))
	if err == nil {
		err = actor("requests")(w, f)
	}
	w.unguard(500 * time.Millisecond)
	return errors.Join(err, w.memory.set(w.memory.none))
}
