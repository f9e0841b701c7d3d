// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/driver/amd"
	"xsched/internal/hub"
	"xsched/internal/model"
)

// amdDriver is AMD's driver; under --virtual its double.
func (d *Daemon) amdDriver() amd.Driver {
	if !d.opts.Virtual {
		return amd.Driver{Sources: amd.SourcesAt("/")}
	}
	return amd.Driver{Sources: amd.SourcesAt(filepath.Join(d.opts.Dir, control.VirtualKFDRoot))}
}

// claim keeps others from attaching to a process at the same time.
func (d *Daemon) claim(pid int) (release func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, twice := d.attaches[pid]; twice {
		return nil, control.Errorf(control.ErrUnavailable, "try again", "process %d is being attached to", pid)
	}
	d.attaches[pid] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.attaches, pid)
	}, nil
}

// attachAMD takes a process over through a tracer, a process of its own: only a debugger may stop and resume
// here, and it must do that also when this one is stopped. Should the tracer die the driver resumes everything.
func (d *Daemon) attachAMD(ctx context.Context, c control.Caller, driver amd.Driver, pid, uid int, command string, hint model.Hint) (hub.SessionView, error) {
	none := hub.SessionView{}
	release, err := d.claim(pid)
	if err != nil {
		return none, err
	}
	defer release()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return none, control.Errorf(control.ErrNotFound, "", "process %d has ended", pid)
	}
	tracer, err := d.guardian.Trace(pid, filepath.Join(d.opts.Dir, control.VirtualKFDSocket))
	var a *amd.Attached
	if err == nil {
		a, err = driver.Attach(tracer, d.metrics)
	}
	if err != nil {
		_ = unix.Close(pidfd)
		return none, amdError(pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	s := &hub.Session{PID: pid, ClientPID: pid, UID: uid, Command: command, FreedByClose: true}
	err = d.hub.Attach(ctx, s, hint, a, a.GPUs, pidfd, func(page int) (func(bool), error) {
		return func(bool) {}, tracer.Guard(page)
	})
	if err != nil {
		return none, control.Errorf(control.ErrUnavailable, "", "attach to process %d: %v", pid, err)
	}
	go d.watchAMD(s, a)
	d.log.Info("attached as debugger", "pid", pid, "uid", uid, "command", command)
	return d.find(ctx, c, pid)
}

func amdError(pid int, err error) error {
	const run = "start it with `xsched run`"
	switch {
	case errors.Is(err, amd.ErrNoRights), errors.Is(err, unix.EACCES):
		return control.Errorf(control.ErrNotAllowed, "run the daemon as root, or "+run, "process %d can't be attached to: %v", pid, err)
	case errors.Is(err, amd.ErrTraced):
		return control.Errorf(control.ErrUnavailable, "end that debugger, or "+run, "process %d can't be attached to: %v", pid, err)
	case errors.Is(err, amd.ErrOldDriver):
		return control.Errorf(control.ErrNotSupported, run, "process %d can't be attached to: %v", pid, err)
	case errors.Is(err, amd.ErrNoQueues), errors.Is(err, amd.ErrNoKFD), errors.Is(err, amd.ErrNoRuntime):
		return control.Errorf(control.ErrNotFound, "attach once it uses the GPU, or "+run, "attach to process %d: %v", pid, err)
	case errors.Is(err, amd.ErrGone):
		return control.Errorf(control.ErrNotFound, "", "process %d has ended", pid)
	}
	return control.Errorf(control.ErrUnavailable, "", "attach to process %d: %v", pid, err)
}

// watchBare looks whether programs work whose work no hook of the library sees.
func (d *Daemon) watchBare(ctx context.Context) {
	t := time.NewTicker(filePeriod)
	defer t.Stop()
	meters := map[model.SessionID]*cpuMeter{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		bare, err := d.hub.Bare(ctx)
		if err != nil {
			continue
		}
		now := map[model.SessionID]*cpuMeter{}
		for _, s := range bare {
			if now[s.ID] = meters[s.ID]; now[s.ID] == nil {
				now[s.ID] = &cpuMeter{}
			}
			d.observe(ctx, now[s.ID], s.ID, s.PID)
		}
		meters = now
	}
}

// watchAMD looks whether an attached process works, and finds GPUs that it starts to use.
func (d *Daemon) watchAMD(s *hub.Session, a *amd.Attached) {
	t := time.NewTicker(filePeriod)
	defer t.Stop()
	var meter cpuMeter
	for n := 1; ; n++ {
		select {
		case <-a.Ended():
			s.End("the debugger's session ended")
			return
		case <-t.C:
		}
		if s.Ended() {
			return
		}
		d.observe(context.Background(), &meter, s.ID, s.PID)
		if n%20 == 0 {
			s.Refresh()
		}
	}
}
