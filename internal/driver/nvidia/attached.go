// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

const scanTime = 5 * time.Second // of one rescan

// attached is a process without the shim, controlled through duplicates of its files.
type attached struct {
	session
	pid      int
	pidfd    atomic.Int64 // for the guardian; -1: handed over or closed
	guardian driver.Guardian
	gpus     map[model.DeviceID]driver.Capability
	files    []Candidate

	id    uint64 // guarded session
	signs signs
}

var _ driver.Attached = (*attached)(nil)

// Attach finds a process's channels through duplicates of its control files.
func (i *instance) Attach(ctx context.Context, r driver.AttachRequest) (driver.Attached, error) {
	signs := newSigns(r.PID)
	a, err := i.Driver.Attach(ctx, r.PID, r.PIDFD, i.limits(r.User), i.metrics)
	if err != nil {
		return nil, refuse(err)
	}
	// Duplicate for the guardian, because the session closes its own pidfd when the process ends.
	pidfd, err := unix.FcntlInt(uintptr(r.PIDFD), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		a.Objects.Close()
		return nil, refuse(fmt.Errorf("duplicate pidfd: %w", err))
	}
	log := r.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	out := &attached{
		session: session{Objects: a.Objects, log: log}, pid: r.PID, guardian: r.Guardian,
		gpus: a.GPUs, files: a.Files, signs: signs,
	}
	out.pidfd.Store(int64(pidfd))
	return out, nil
}

func (a *attached) Capabilities() map[model.DeviceID]driver.Capability { return a.gpus }

// Free resumes every channel and restores every timeslice.
func (a *attached) Free(ctx context.Context) (driver.Freed, error) { return a.freeAll(ctx) }

func (a *attached) RestoredByClose() bool { return false }

// Guard hands the guardian the state to restore every channel and timeslice.
func (a *attached) Guard(ctx context.Context, id uint64, page int) (func(restored bool), error) {
	pidfd := int(a.pidfd.Swap(-1))
	if pidfd < 0 {
		return nil, errClosed
	}
	defer func() { _ = unix.Close(pidfd) }()
	state, fds, err := a.state(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAll(fds)
	w := driver.Ward{Driver: Name, Session: id, PID: a.pid, Page: page, PIDFD: pidfd, State: state, FDs: fds}
	if err := a.guardian.Keep(w); err != nil {
		return nil, err
	}
	a.id = id
	return func(restored bool) { a.guardian.Drop(id, restored) }, nil
}

// Close also cleans up after a failed attach.
func (a *attached) Close() {
	a.session.Close()
	if pidfd := int(a.pidfd.Swap(-1)); pidfd >= 0 {
		_ = unix.Close(pidfd)
	}
}

// Poll ends the session when the process has closed its files or called exec, because only our
// duplicates keep its GPU memory then. Poll also rescans for new channels when there are signs of
// some.
func (a *attached) Poll(ctx context.Context) (changed bool, err error) {
	if !StillHasAny(a.pid, a.files) {
		return false, errors.New("the process closed its files")
	}
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	found, err := a.rescan(ctx)
	if err != nil || !found {
		if err != nil {
			a.log.Debug("rescan failed", "err", err)
		}
		return false, nil
	}
	// The guardian must know how to restore a channel before the daemon acts on it.
	state, fds, err := a.state(ctx)
	if err == nil {
		err = a.guardian.Update(a.id, state, fds)
	}
	closeAll(fds)
	if err != nil {
		a.log.Warn("new hardware queues of an attached process are not scheduled", "err", err)
		a.signs.cpu, a.signs.files = -1, -1 // search again
		return false, nil
	}
	a.Release()
	return true, nil
}

// wardState is the guardian's restore data, with one descriptor per restore.
type wardState struct {
	Restores []Restore   `json:"restores"`
	Files    []Candidate `json:"files"`
}

// state returns the data to restore the process on every GPU.
func (a *attached) state(ctx context.Context) (json.RawMessage, []int, error) {
	s := wardState{Files: a.files}
	var fds []int
	for _, gpu := range a.GPUs() {
		r, more, err := a.Restores(ctx, gpu)
		if err != nil {
			closeAll(fds)
			return nil, nil, err
		}
		s.Restores, fds = append(s.Restores, r...), append(fds, more...)
	}
	b, err := json.Marshal(s)
	if err != nil {
		closeAll(fds)
		return nil, nil, fmt.Errorf("encode restores: %w", err)
	}
	return b, fds, nil
}

// restoration is the guardian's side.
type restoration struct {
	driver *Driver
	pid    int
	files  []*File
	state  wardState
}

// Restoration rebuilds the restores from state.
func (kernelDriver) Restoration(p driver.Place, pid int, state json.RawMessage, fds []int) (driver.Restoration, error) {
	r := &restoration{pid: pid}
	err := json.Unmarshal(state, &r.state)
	if err == nil && len(r.state.Restores) != len(fds) {
		err = fmt.Errorf("%d descriptors for %d clients", len(fds), len(r.state.Restores))
	}
	if err == nil {
		r.driver, err = openAt(p)
	}
	if err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("prepare to restore process %d: %w", pid, err)
	}
	for _, fd := range fds {
		r.files = append(r.files, NewFile(fd))
	}
	return r, nil
}

// Reopen finds the file of each recorded RM client among the process's files. RM answers only for
// clients of the asking file.
func (kernelDriver) Reopen(ctx context.Context, p driver.Place, pid, pidfd int, state json.RawMessage) (driver.Restoration, error) {
	var s wardState
	if err := json.Unmarshal(state, &s); err != nil {
		return nil, fmt.Errorf("decode state of process %d: %w", pid, err)
	}
	d, err := openAt(p)
	if err != nil {
		return nil, err
	}
	r, err := d.reopen(ctx, pid, pidfd, s)
	if r == nil {
		return nil, err
	}
	return r, err
}

func (d *Driver) reopen(ctx context.Context, pid, pidfd int, s wardState) (*restoration, error) {
	// All of them: the process may have opened more since the attach.
	files, found, err := d.duplicate(pid, pidfd, maxCandidates)
	if errors.Is(err, ErrNoContext) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closeFiles(files)
	r := &restoration{driver: d, pid: pid, state: wardState{Files: found}}
	for _, one := range s.Restores {
		f, err := d.fileOf(ctx, files, one)
		if err != nil {
			r.Close()
			return nil, err
		}
		if f != nil {
			r.files, r.state.Restores = append(r.files, f), append(r.state.Restores, one)
		}
	}
	return r, nil
}

// fileOf returns a duplicate of the file that owns a client; nil: none does.
func (d *Driver) fileOf(ctx context.Context, files []*File, r Restore) (*File, error) {
	for _, f := range files {
		err := d.control(ctx, f, r.Client, r.Subdevice, abi.NV2080_CTRL_CMD_GPU_GET_ID, make([]byte, 4))
		if st, answered := statusOf(err); answered && !st.transient() {
			continue
		}
		if err != nil {
			return nil, err
		}
		fd, err := f.dup()
		if err != nil {
			return nil, fmt.Errorf("duplicate control file: %w", err)
		}
		return NewFile(fd), nil
	}
	return nil, nil
}

// Restore restores all GPUs at the same time, because one may never answer.
func (r *restoration) Restore(ctx context.Context) error {
	failed := make([]error, len(r.files))
	var all sync.WaitGroup
	for i := range r.files {
		all.Go(func() { failed[i] = r.driver.Restore(ctx, r.files[i], r.state.Restores[i]) })
	}
	all.Wait()
	return errors.Join(failed...)
}

func (r *restoration) Gone() bool { return !StillHasAny(r.pid, r.state.Files) }

func (r *restoration) Close() { closeFiles(r.files) }
