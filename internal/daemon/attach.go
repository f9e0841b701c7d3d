// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/guardian"
	"xsched/internal/identity"
	"xsched/internal/keeper"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session"
)

const (
	attachTime = 5 * time.Second       // in total; a driver's search has its own, shorter bound
	pollPeriod = 50 * time.Millisecond // interval between two polls of an attached process

	attachEnds = "; attach it again after a restart of the daemon"
)

// Attach implements control.Control: it takes over a process without the shim.
func (p *processes) Attach(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	hint, err := p.attachHint(c, r)
	if err != nil {
		return control.ProcessReply{}, err
	}
	s, err := p.access.find(ctx, c, r.PID)
	switch {
	case err == nil && s.Attached:
		if _, err := p.Hint(ctx, c, control.HintRequest{PID: r.PID, Priority: r.Priority, Utilization: r.Utilization}); err != nil {
			return control.ProcessReply{}, err
		}
		return reply(c, s, "process %d is already attached"), nil
	case err == nil:
		return control.ProcessReply{}, control.Errorf(control.ErrInvalid, "use `xsched suspend` and `xsched hint` on it", "process %d is connected through its shim", r.PID)
	case !errors.Is(err, control.ErrNotFound):
		return control.ProcessReply{}, err
	}
	start := time.Now()
	if s, err = p.attacher.attach(ctx, c, r.PID, hint); err != nil {
		return control.ProcessReply{}, err
	}
	return reply(c, s, fmt.Sprintf("attached to process %%d in %v"+attachEnds, time.Since(start).Round(time.Millisecond))), nil
}

// attachHint returns the initial hints of a process.
func (p *processes) attachHint(c control.Caller, r control.ProcessRequest) (model.HintChange, error) {
	request := control.HintRequest{PID: r.PID, Priority: r.Priority, Utilization: r.Utilization}
	change, err := request.Change()
	if err != nil {
		return change, err
	}
	return change, p.access.mayHave(c, &change)
}

// Detach implements control.Control: it releases an attached process.
func (p *processes) Detach(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	s, err := p.access.find(ctx, c, r.PID)
	if err != nil {
		return control.ProcessReply{}, err
	}
	r.PID = shownPID(c, s.Identity)
	if !s.Attached {
		return control.ProcessReply{}, control.Errorf(control.ErrInvalid, "it disconnects when it ends", "process %d is connected through its shim", r.PID)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	p.keeper.Forget(s.PID)
	freed, err := p.access.server.Detach(ctx, s.PID)
	if errors.Is(err, session.ErrNotFreed) {
		return control.ProcessReply{}, control.Errorf(control.ErrUnavailable, "none needed: the guardian repeats the resume until it succeeds",
			"process %d was detached, but %v", r.PID, err)
	}
	if err := unavailable(err); err != nil {
		return control.ProcessReply{}, typed(err)
	}
	return control.ProcessReply{PID: r.PID, Message: fmt.Sprintf("process %d is free: %v", r.PID, freed)}, nil
}

// attacher takes over processes without the shim.
type attacher struct {
	log       *slog.Logger
	access    *access
	keeper    *keeper.Keeper
	drivers   *driver.Set
	guardian  *guardian.Client
	recovery  *guardian.Recovery // of processes that a previous daemon left
	unmanaged *unmanaged
	observer  *observer

	mu      sync.Mutex
	claimed map[int]struct{} // in progress, by PID
}

// attach finds a process's hardware queues, arms the guardian and registers the process. The daemon
// acts on it only after the guardian can undo it.
func (a *attacher) attach(ctx context.Context, c control.Caller, pid int, hint model.HintChange) (loop.ClientView, error) {
	none := loop.ClientView{}
	if c.PIDNamespace != 0 {
		return none, control.Errorf(control.ErrNotAllowed, "see `xsched list`; only the host can attach", "process %d of this PID namespace is not managed", pid)
	}
	// The pidfd first: every later step is about that process, even if its number is reused.
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return none, control.Errorf(control.ErrNotFound, "see `xsched list`", "there is no process %d", pid)
	}
	owned := true
	defer func() {
		if owned {
			_ = unix.Close(pidfd)
		}
	}()
	program := identity.ProgramOf(pid)
	who, command, err := lookUp(pid, pidfd)
	if err != nil {
		return none, err
	}
	if err := mayChange(c, pid, who.User); err != nil {
		return none, err
	}
	release, err := a.claim(pid)
	if err != nil {
		return none, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	if a.recovery.Wait(ctx, pid) != nil {
		return none, control.Errorf(control.ErrUnavailable, "try again when the device responds",
			"process %d is still being resumed from the suspension of a previous daemon", pid)
	}
	attached, err := a.drivers.Attach(ctx, driver.AttachRequest{
		PID: pid, PIDFD: pidfd, User: who.User, Log: a.log.With("pid", pid), Guardian: a.guardian,
	})
	if err != nil {
		return none, attachError(pid, err)
	}
	owned = false
	s, err := a.access.server.Attach(loop.WithUser(ctx, c.User), loop.Identity{
		PID: pid, ClientPID: who.LocalPID, PIDNamespace: who.PIDNamespace, LocalPID: who.LocalPID, User: who.User, Command: command, Program: &program,
	}, hint, attached, pidfd)
	if err != nil {
		return none, control.Errorf(control.ErrUnavailable, "", "attach to process %d: %v", pid, err)
	}
	go a.observer.watch(s, attached)
	a.unmanaged.request()
	a.keeper.Keep(s.Identity, loop.Kept{Set: hint}, true, a.access.owner(c, "") == nil)
	a.log.Info("attached", "pid", pid, "user", who.User, "command", command)
	return a.access.find(ctx, c, pid)
}

// claim prevents concurrent attaches to a process.
func (a *attacher) claim(pid int) (release func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, twice := a.claimed[pid]; twice {
		return nil, control.Errorf(control.ErrUnavailable, "try again", "another attach to process %d is in progress", pid)
	}
	a.claimed[pid] = struct{}{}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.claimed, pid)
	}, nil
}

// attachError converts a driver's refusal to a control.Error.
func attachError(pid int, err error) error {
	var refused *driver.AttachError
	if !errors.As(err, &refused) {
		return control.Errorf(control.ErrUnavailable, "", "attach to process %d: %v", pid, err)
	}
	kind := map[driver.Refusal]error{
		driver.RefusedNotUsed: control.ErrNotFound, driver.RefusedRights: control.ErrNotAllowed,
		driver.RefusedSupport: control.ErrNotSupported, driver.RefusedGone: control.ErrNotFound,
	}[refused.Refusal]
	if kind == nil {
		kind = control.ErrUnavailable
	}
	if refused.Refusal == driver.RefusedGone {
		return control.Errorf(kind, "", "process %d has ended", pid)
	}
	return control.Errorf(kind, refused.Remedy, "process %d can't be attached to: %v", pid, err)
}

// lookUp identifies the process of a pidfd and returns its command.
func lookUp(pid, pidfd int) (who identity.Peer, command string, err error) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	// A process that lives now had its number all the time.
	switch who, err = identity.OfProcess(pidfd); {
	case errors.Is(err, identity.ErrEnded):
		return who, "", control.Errorf(control.ErrNotFound, "", "process %d has ended", pid)
	case err != nil:
		return who, "", control.Errorf(control.ErrUnavailable, "", "attach to process %d: %v", pid, err)
	}
	command = strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
	return who, strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, command), nil
}
