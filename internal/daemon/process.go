// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"

	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/keeper"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// processes changes the hints and the state of single processes.
type processes struct {
	access   *access
	terms    *terms
	keeper   *keeper.Keeper
	drivers  *driver.Set
	attacher *attacher
}

// Suspend implements control.Control.
func (p *processes) Suspend(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	message := "suspended process %d"
	s, err := p.access.find(ctx, c, r.PID)
	if errors.Is(err, control.ErrNotFound) {
		if s, err = p.attacher.attach(ctx, c, r.PID, model.HintChange{}); err == nil {
			message = "attached to process %d and suspended it" + attachEnds
		}
	}
	if err != nil {
		return control.ProcessReply{}, err
	}
	return p.hold(loop.WithUser(ctx, c.User), c, s, true, message)
}

// Resume implements control.Control.
func (p *processes) Resume(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	s, err := p.access.find(ctx, c, r.PID)
	if errors.Is(err, control.ErrNotFound) && p.access.owner(c, "") == nil && p.keeper.Release(r.PID) {
		return control.ProcessReply{PID: r.PID, Message: fmt.Sprintf("process %d is not connected; it will not be suspended again when it connects", r.PID)}, nil
	}
	if err != nil {
		return control.ProcessReply{}, err
	}
	if !s.Held {
		return reply(c, s, "process %d was not suspended by hand"), nil
	}
	return p.hold(loop.WithUser(ctx, c.User), c, s, false, "resumed process %d")
}

func (p *processes) hold(ctx context.Context, c control.Caller, s loop.ClientView, held bool, message string) (control.ProcessReply, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := p.access.loop.SetHeld(ctx, s.PID, held)
	if errors.Is(err, loop.ErrUnknownPID) {
		return control.ProcessReply{}, control.Errorf(control.ErrNotFound, "", "process %d has ended", shownPID(c, s.Identity))
	}
	if err := unavailable(err); err != nil {
		return control.ProcessReply{}, typed(err)
	}
	p.keepProcess(ctx, c, s.PID)
	out := reply(c, s, message)
	out.Held = held
	if held && len(s.Queues) == 0 {
		out.Message += "; it has no GPU context yet and will be suspended when it creates one"
	}
	return out, nil
}

// reply describes a process to a caller. message has a verb for its PID.
func reply(c control.Caller, s loop.ClientView, message string) control.ProcessReply {
	pid := shownPID(c, s.Identity)
	out := control.ProcessReply{PID: pid, Attached: s.Attached, Held: s.Held, Message: fmt.Sprintf(message, pid)}
	for i, q := range s.Queues {
		if i == 0 || int(q.Level) < out.Level {
			out.Level = int(q.Level)
		}
	}
	return out
}

// keepProcess remembers what is set for a process.
func (p *processes) keepProcess(ctx context.Context, c control.Caller, pid int) {
	operator := p.access.owner(c, "") == nil
	p.keeper.KeepLatest(pid, operator, func() (loop.Identity, loop.Kept, error) {
		return p.access.loop.Kept(ctx, pid)
	})
	if operator {
		p.keeper.Flush(ctx) // others do not make the disk work at their pace
	}
}

// canDo refuses a level that a process's queues do not support.
func (p *processes) canDo(v loop.ClientView, l model.Level) error {
	if l <= model.LevelBlock {
		if l == model.LevelBlock && v.Attached {
			return control.Errorf(control.ErrNotSupported, "use level 2 or 3, or start the program with `xsched run`", "level 1 requires the shim, which process %d does not have", v.PID)
		}
		return nil
	}
	if p.drivers.Empty() && len(v.Caps) == 0 {
		return control.Errorf(control.ErrNotSupported, "use level 1", "level %d is not available: %s", l, p.drivers.Absent())
	}
	for _, q := range v.Queues {
		if c := v.Caps[q.Device]; c.MaxLevel < l {
			reason := c.Reason
			if reason == "" {
				reason = q.Reason
			}
			return control.Errorf(control.ErrNotSupported, "use level 1 or auto", "level %d is not available for process %d on %s: %s", l, v.PID, q.Device, reason)
		}
	}
	return nil
}

// granted returns nil if the grant of a process permits what exceeds the limits of the caller. pid is the
// process in the namespace of the caller.
func (p *processes) granted(c control.Caller, who *loop.Identity, pid int, change *model.HintChange) error {
	pod := p.terms.podOf(who)
	rest := pod.without(change)
	err := p.access.mayHave(c, &rest)
	if err != nil && pod.limits() {
		err = pod.refusal(pid)
	}
	return err
}

// typed converts an error to a control.Error.
func typed(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*control.Error](err); ok {
		return e
	}
	return control.Errorf(control.ErrUnavailable, "", "%v", err)
}
