// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/model"
)

const (
	scanPeriod = 2 * time.Second // interval of rescans for new channels
	scanTime   = 5 * time.Second
)

// attached is a process without the shim, controlled through duplicates of its files.
type attached struct {
	session
	pid      int
	pidfd    atomic.Int64 // for the guardian; -1: handed over or closed
	guardian driver.Guardian
	gpus     map[model.DeviceID]driver.Capability
	files    []Candidate

	id      uint64 // guarded session
	scanned time.Time
}

var _ driver.Attached = (*attached)(nil)

// Attach finds a process's channels through duplicates of its control files.
func (i *instance) Attach(ctx context.Context, r driver.AttachRequest) (driver.Attached, error) {
	a, err := i.Driver.Attach(ctx, r.PID, r.PIDFD, i.limits(r.UID), i.metrics)
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
		session: session{a.Objects, log}, pid: r.PID, guardian: r.Guardian,
		gpus: a.GPUs, files: a.Files, scanned: time.Now(),
	}
	out.pidfd.Store(int64(pidfd))
	return out, nil
}

func (a *attached) Capabilities() map[model.DeviceID]driver.Capability { return a.gpus }

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
// duplicates keep its GPU memory then. Poll also rescans for new channels.
func (a *attached) Poll(ctx context.Context) (changed bool, err error) {
	if !StillHasAny(a.pid, a.files) {
		return false, errors.New("the process closed its files")
	}
	if time.Since(a.scanned) < scanPeriod {
		return false, nil
	}
	defer func() { a.scanned = time.Now() }()
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	found, err := a.Rescan(ctx)
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

func (r *restoration) Restore(ctx context.Context) error {
	var err error
	for i := range r.files {
		err = errors.Join(err, r.driver.Restore(ctx, r.files[i], r.state.Restores[i]))
	}
	return err
}

func (r *restoration) Gone() bool { return !StillHasAny(r.pid, r.state.Files) }

func (r *restoration) Close() { closeFiles(r.files) }
