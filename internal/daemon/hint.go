// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"xsched/internal/control"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// Hint implements control.Control.
func (p *processes) Hint(ctx context.Context, c control.Caller, r control.HintRequest) (control.HintReply, error) {
	change, err := r.Change()
	if err != nil {
		return control.HintReply{}, err
	}
	s, err := p.access.find(ctx, c, r.PID)
	if err != nil {
		return control.HintReply{}, err
	}
	r.PID = shownPID(c, s.Identity)
	if r.Queue == nil && r.Level != nil {
		if err := p.canDo(s, model.Level(*r.Level)); err != nil {
			return control.HintReply{}, err
		}
	}
	edit, err := p.edit(c, &s, r, change)
	if err != nil {
		return control.HintReply{}, err
	}
	ctx, cancel := context.WithTimeout(loop.WithUser(ctx, c.User), answerTime)
	defer cancel()
	var hint model.Hint
	if r.Queue != nil {
		hint, err = p.queueHint(ctx, s, edit)
	} else {
		hint, err = p.access.loop.EditHint(ctx, edit)
	}
	if err != nil {
		return control.HintReply{}, p.hintError(&s, r, err)
	}
	if r.Queue == nil && !change.Empty() {
		p.keepProcess(ctx, c, s.PID)
	}
	if r.Level != nil {
		if err := p.settle(ctx, s.PID, *r.Level); err != nil {
			return control.HintReply{}, err
		}
	}
	return control.HintReply{PID: r.PID, Queue: r.Queue, Hints: control.HintsOf(&hint)}, nil
}

// edit returns the change for the loop, or an error if neither the caller nor the grant permits it.
func (p *processes) edit(c control.Caller, s *loop.ClientView, r control.HintRequest, change model.HintChange) (loop.HintEdit, error) {
	_, raises := change.Top()
	check := together(change)
	if p.access.mayHave(c, &change) != nil {
		raises = false // what a grant permits ends with it
		granted := func() error { return p.granted(c, &s.Identity, r.PID, &change) }
		if err := granted(); err != nil {
			return loop.HintEdit{}, err
		}
		check = func(h *model.Hint) error { // on the loop: the grant may have ended meanwhile
			if err := granted(); err != nil {
				return err
			}
			return together(change)(h)
		}
	}
	return loop.HintEdit{
		PID: s.PID, Queue: r.Queue, Change: change, Raises: raises, Check: check,
		Pins: c.User.Root() && !s.User.Root() && !change.Empty(),
	}, nil
}

// hintError converts an error of the loop.
func (p *processes) hintError(s *loop.ClientView, r control.HintRequest, err error) error {
	pod := p.terms.podOf(&s.Identity)
	switch {
	case errors.Is(err, loop.ErrUnknownPID):
		return control.Errorf(control.ErrNotFound, "see `xsched list`", "process %d has ended", r.PID)
	case errors.Is(err, loop.ErrPinned) && pod.hints != nil:
		return pod.refusal(r.PID)
	case errors.Is(err, loop.ErrPinned):
		return control.Errorf(control.ErrNotAllowed, "use sudo, or ask the administrator", "root has set this hint of process %d", r.PID)
	case errors.Is(err, loop.ErrUnknownQueue):
		return control.Errorf(control.ErrNotFound, "see `xsched list`", "process %d has no queue %d", r.PID, *r.Queue)
	}
	return typed(unavailable(err))
}

// settle waits until a new level is in force: a process that is suspended at the old one changes over.
func (p *processes) settle(ctx context.Context, pid, level int) error {
	switch err := p.access.loop.Settle(ctx, pid); {
	case err == nil, errors.Is(err, loop.ErrUnknownPID):
		return nil // what has ended needs no change
	case errors.Is(err, context.DeadlineExceeded):
		return control.Errorf(control.ErrUnavailable, "see `xsched list --stats`", "level %d is set, but the driver has not applied it yet", level)
	case errors.Is(err, loop.ErrStopped), errors.Is(err, context.Canceled):
		return unavailable(err)
	default:
		return control.Errorf(control.ErrUnavailable, "the daemon tries again; see `xsched list --stats`", "level %d is set, but not applied: %v", level, err)
	}
}

// queueHint changes one queue. Hints that the hardware applies to a whole process are refused.
func (p *processes) queueHint(ctx context.Context, s loop.ClientView, edit loop.HintEdit) (model.Hint, error) {
	for _, f := range model.HintFields() {
		if f.Process && edit.Change.Has(f.Name) {
			return model.Hint{}, control.Errorf(control.ErrInvalid, "omit --queue", "%s applies to a process, not to a queue", strings.ReplaceAll(f.Name, "_", " "))
		}
	}
	if edit.Change.Empty() { // only reads
		for _, q := range s.Queues {
			if q.Index == *edit.Queue {
				return q.Hint, nil
			}
		}
		return model.Hint{}, loop.ErrUnknownQueue
	}
	return p.access.loop.EditHint(ctx, edit)
}

// together checks the combination of changed and existing hints.
func together(change model.HintChange) func(*model.Hint) error {
	has := func(names ...string) bool { return slices.ContainsFunc(names, change.Has) }
	return func(h *model.Hint) error {
		switch {
		case has("in_flight", "batch") && h.InFlight != 0 && h.Batch > h.InFlight:
			return control.Errorf(control.ErrInvalid, fmt.Sprintf("use at most %d", h.InFlight), "batch %d is larger than in-flight limit %d", h.Batch, h.InFlight)
		case has("slo_percentile") && h.SLO.Percentile != 0 && !h.SLO.Said():
			return control.Errorf(control.ErrInvalid, "set slo too", "slo percentile %v has no target", h.SLO.Percentile)
		}
		return nil
	}
}
