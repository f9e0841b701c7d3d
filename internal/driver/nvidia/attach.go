// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/quarantine"
)

// Search bounds of an attach. CUDA numbers handles from firstHandle up. RM numbers clients from
// firstClient up, across all processes, and wraps around.
const (
	firstHandle   = 0x5c000000
	maxHandles    = 0x1000 // probed per client
	handleGap     = 0x100  // consecutive misses that end the walk
	firstClient   = 0xc1d00000
	maxClients    = 0x100000 // size of the client number space
	maxSpareWalk  = 64       // numbers above the newest, for clients created during the walk
	maxCandidates = 256      // open files per process
	maxFiles      = 8        // control files per process

	// searchTime bounds the walk over client numbers.
	searchTime = 2 * time.Second
	// moreTime extends the walk after the first hit, because a process creates its RM clients in
	// quick succession.
	moreTime = 20 * time.Millisecond
	// againTime bounds the search above the newest number.
	againTime = 300 * time.Millisecond
)

// Attach errors; test with errors.Is.
var (
	ErrNoContext = errors.New("the process has no CUDA context")
	ErrNoRights  = errors.New("not allowed to duplicate the process's files")
	ErrSearch    = errors.New("its hardware queues were not found in time")
	// ErrUnsupported marks a driver whose ABI is unknown or different.
	ErrUnsupported = errors.New("the driver is not supported")
)

// Candidate is an open file of another process that may be a control file.
type Candidate struct {
	FD   int
	Link string // its /proc link
}

// candidates lists a process's open files whose link matches.
func candidates(pid int, interesting func(link string) bool) ([]Candidate, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%w: %w", ErrNoRights, err)
		}
		return nil, fmt.Errorf("list files of process %d: %w", pid, err)
	}
	var out []Candidate
	for _, n := range names {
		fd, err := strconv.Atoi(n.Name())
		if err != nil {
			continue
		}
		link, err := os.Readlink(dir + "/" + n.Name())
		if err == nil && interesting(link) {
			if out = append(out, Candidate{fd, link}); len(out) >= maxCandidates {
				break
			}
		}
	}
	return out, nil
}

// StillHasAny reports whether the process still has one of the files open at its original
// descriptor. After exec or close, our duplicates must not keep its GPU memory allocated.
func StillHasAny(pid int, list []Candidate) bool {
	for _, c := range list {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, c.FD))
		if err == nil && link == c.Link {
			return true
		}
	}
	return false
}

// Attached is a process without the shim.
type Attached struct {
	Objects *Objects
	GPUs    map[model.DeviceID]driver.Capability
	Files   []Candidate // duplicated files, to detect when the process closes them
}

// Attach finds the RM objects of a process without the shim. Attach duplicates its control files
// and probes client numbers and handles. RM answers only for objects of the same file.
func (d *Driver) Attach(ctx context.Context, pid, pidfd int, l Limits, m *driver.Metrics) (*Attached, error) {
	d.Refresh()
	if why := d.untouchable(); why != "" {
		return nil, fmt.Errorf("%w: %s", ErrUnsupported, why)
	}
	files, found, err := d.duplicate(pid, pidfd, maxFiles)
	if err != nil {
		return nil, err
	}
	objects := NewObjects(d, l, m)
	objects.everyChannel, objects.process = true, pid
	w := &walk{driver: d, files: files, into: objects, budget: searchTime}
	if err := w.clients(ctx); err != nil {
		closeFiles(files)
		objects.Close()
		return nil, err
	}
	closeFiles(files) // each client found has its own duplicate
	gpus, err := objects.resolve(ctx, searchTime)
	if err != nil {
		objects.Close()
		return nil, err
	}
	why := ""
	for gpu, c := range gpus {
		if c.MaxLevel < model.LevelInterrupt {
			delete(gpus, gpu)
			why = c.Reason
		}
	}
	if len(gpus) == 0 {
		objects.Close()
		return nil, w.nothing(why)
	}
	return &Attached{Objects: objects, GPUs: gpus, Files: found}, nil
}

// duplicate copies the process's control files with pidfd_getfd, up to a number.
func (d *Driver) duplicate(pid, pidfd, most int) ([]*File, []Candidate, error) {
	list, err := d.transport.Find(pid)
	if err != nil {
		return nil, nil, err
	}
	account := fmt.Sprintf("process %d", pid)
	if info, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			account = fmt.Sprintf("uid %d", st.Uid)
		}
	}
	var files []*File
	var found []Candidate
	for _, c := range list {
		if len(files) >= most {
			break
		}
		fd, err := d.transport.Copy(pidfd, c.FD, account)
		switch {
		case err == nil:
			files, found = append(files, NewFile(fd)), append(found, c)
		case errors.Is(err, unix.EPERM):
			closeFiles(files)
			return nil, nil, fmt.Errorf("%w: pidfd_getfd: %w", ErrNoRights, err)
		case errors.Is(err, quarantine.ErrTime):
			closeFiles(files)
			return nil, nil, err
		}
		// Otherwise it is another file, or closed meanwhile.
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("%w: no control file is open", ErrNoContext)
	}
	return files, found, nil
}

// newestClient finds the newest client number by allocating one.
func (d *Driver) newestClient(ctx context.Context) (uint32, error) {
	f, err := d.transport.Open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	h, err := d.newClient(ctx, f)
	if err != nil {
		return 0, err
	}
	d.freeClient(ctx, f, h)
	return h, nil
}

func closeFiles(files []*File) {
	for _, f := range files {
		_ = f.Close()
	}
}
