// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"xsched/internal/device"
	"xsched/internal/model"
)

// How far an attach looks. CUDA numbers its handles from firstHandle up, RM its
// clients from firstClient up.
const (
	firstHandle   = 0x5c000000
	handles       = 0x200
	firstClient   = 0xc1d00000
	maxClientWalk = 4096 // client numbers below the newest
	maxSpareWalk  = 64   // and above: others may start while we look
	maxCandidates = 256  // open files of one process
	maxFiles      = 8    // control files of one process
)

// Why a process can't be attached to; tested with errors.Is.
var (
	ErrNoContext = errors.New("the process has no CUDA context")
	ErrNoRights  = errors.New("not allowed to duplicate the process's files")
)

// Candidate is an open file of another process that may be a control file.
type Candidate struct {
	FD   int
	Link string // what /proc says it is
}

// candidates lists the open files of a process whose link is of interest.
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

// StillHasAny says whether the process still has one of the files open under
// the number it was found at: after exec, or a close, a duplicate must not keep
// its GPU memory alive.
func StillHasAny(pid int, list []Candidate) bool {
	for _, c := range list {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, c.FD))
		if err == nil && link == c.Link {
			return true
		}
	}
	return false
}

// Attached is a process that was taken over from outside.
type Attached struct {
	Objects *Objects
	GPUs    map[model.DeviceID]device.Capability
	Files   []Candidate // what was duplicated, to see when the process lets go
}

// Attach finds the RM objects of a process that has no shim: it duplicates its
// control files and walks client numbers and handles with cheap probes, which
// answer only for what belongs to that very file.
func (d *Driver) Attach(ctx context.Context, pid, pidfd int, l Limits, m *device.Metrics) (*Attached, error) {
	files, found, err := d.duplicate(pid, pidfd)
	if err != nil {
		return nil, err
	}
	newest, err := d.newestClient(ctx)
	if err != nil {
		closeFiles(files)
		return nil, err
	}
	objects := NewObjects(d, l, m)
	objects.everyChannel = true
	for _, f := range files {
		if err := d.walkClients(ctx, f, newest, objects); err != nil {
			closeFiles(files)
			objects.Close()
			return nil, err
		}
	}
	closeFiles(files) // the clients found have their own duplicates
	gpus, err := objects.Resolve(ctx)
	if err != nil {
		objects.Close()
		return nil, err
	}
	for gpu, c := range gpus {
		if c.MaxLevel < model.LevelInterrupt {
			delete(gpus, gpu)
		}
	}
	if len(gpus) == 0 {
		objects.Close()
		return nil, fmt.Errorf("attach to process %d: %w: no hardware queue was found on its files", pid, ErrNoContext)
	}
	return &Attached{Objects: objects, GPUs: gpus, Files: found}, nil
}

// duplicate takes the process's control files by pidfd_getfd.
func (d *Driver) duplicate(pid, pidfd int) ([]*File, []Candidate, error) {
	list, err := d.transport.Find(pid)
	if err != nil {
		return nil, nil, err
	}
	var files []*File
	var found []Candidate
	for _, c := range list {
		fd, err := unix.PidfdGetfd(pidfd, c.FD, 0)
		if errors.Is(err, unix.EPERM) {
			closeFiles(files)
			return nil, nil, fmt.Errorf("attach to process %d: %w: pidfd_getfd: %w", pid, ErrNoRights, err)
		}
		if err != nil {
			continue // closed since
		}
		if d.transport.Accept(fd) != nil || len(files) >= maxFiles {
			_ = unix.Close(fd)
			continue
		}
		files, found = append(files, NewFile(fd)), append(found, c)
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("attach to process %d: %w: it has no control file open", pid, ErrNoContext)
	}
	return files, found, nil
}

// newestClient learns how far client numbers have come by making one.
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

// walkClients looks for the clients of a file, the newest first.
func (d *Driver) walkClients(ctx context.Context, f *File, newest uint32, into *Objects) error {
	lowest := uint32(firstClient)
	if newest > firstClient+maxClientWalk {
		lowest = newest - maxClientWalk
	}
	for h := newest + maxSpareWalk; h >= lowest; h-- {
		if err := ctx.Err(); err != nil {
			return err
		}
		if h == newest {
			continue // was ours
		}
		err := d.control(ctx, f, h, firstHandle, NV2080_CTRL_CMD_GPU_GET_ID, make([]byte, 4))
		st, answered := statusOf(err)
		if err != nil && !answered {
			return err
		}
		if answered && st.foreign() {
			continue
		}
		if err := d.walkHandles(ctx, f, h, into); err != nil {
			return err
		}
	}
	return nil
}

// walkHandles finds a client's subdevices, groups and channels. Their parents
// can't be asked for, so with several GPUs in one client nothing is taken:
// a channel must not be stopped through another GPU's subdevice.
func (d *Driver) walkHandles(ctx context.Context, f *File, client uint32, into *Objects) error {
	type hit struct{ handle, class uint32 }
	var hits []hit
	gpus := map[model.DeviceID]bool{}
	for h := uint32(firstHandle); h < firstHandle+handles; h++ {
		// 0xC06F stands for any channel class: the probe is the same for all.
		for _, class := range []uint32{NV20_SUBDEVICE_0, KEPLER_CHANNEL_GROUP_A, 0xC000 | classEndChannel} {
			gpu, err := d.probeObject(ctx, f, client, h, class)
			if err == nil {
				hits = append(hits, hit{h, class})
				if class == NV20_SUBDEVICE_0 {
					gpus[gpu] = true
				}
				break
			}
			if _, answered := statusOf(err); !answered {
				return err
			}
		}
	}
	if len(gpus) != 1 || len(hits) < 3 {
		return nil
	}
	fd, err := f.dup()
	if err != nil {
		return fmt.Errorf("duplicate control file: %w", err)
	}
	if err := into.AddClient(client, fd); err != nil {
		return err
	}
	for _, h := range hits {
		if err := into.Alloc(client, 0, h.handle, h.class); err != nil {
			return err
		}
	}
	return nil
}

func closeFiles(files []*File) {
	for _, f := range files {
		_ = f.Close()
	}
}
