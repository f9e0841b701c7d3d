// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"slices"

	"xsched/internal/config"
	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session"
)

// access decides which processes and settings a caller may see and change. It does nothing with them.
type access struct {
	uid    int // of the daemon
	loop   *loop.Loop
	server *session.Server
}

// self returns the daemon's user.
func (a *access) self() identity.User { return identity.OnHost(a.uid) }

// maxParents bounds the search for the managed parent of a caller.
const maxParents = 64

// administers reports whether a user may change the daemon's settings.
func (a *access) administers(u identity.User) bool { return u.Root() || u == a.self() }

// owner refuses callers that may not change daemon-wide settings.
func (a *access) owner(c control.Caller, what string) error {
	if a.administers(c.User) {
		return nil
	}
	return control.Errorf(control.ErrNotAllowed, "use sudo", "only root and the daemon's user (uid %d) may change the %s", a.uid, what)
}

// hostPID returns the process that a caller means, in the daemon's PID namespace. A number from
// another namespace is translated or refused, never taken for one of the host.
func (a *access) hostPID(c control.Caller, pid int) (int, error) {
	switch {
	case pid == control.Self:
		managed := a.server.PIDs()
		for p, n := c.PID, 0; p > 0 && n < maxParents; p, n = identity.Parent(p), n+1 {
			if managed[p] {
				return p, nil
			}
		}
		return 0, control.Errorf(control.ErrInvalid, "start the program with `xsched run`, or name a PID", "neither this process nor a parent of it is managed")
	case pid <= 0:
		return 0, control.Errorf(control.ErrInvalid, "see `xsched list`", "%d is not a PID", pid)
	case c.PIDNamespace == 0:
		return pid, nil
	}
	if host := a.server.HostPID(c.PIDNamespace, pid); host != 0 {
		return host, nil
	}
	return 0, control.Errorf(control.ErrNotAllowed, "see `xsched list`; only the host can attach", "process %d of this PID namespace is not managed", pid)
}

// find returns a process that the caller may change. pid is in the caller's namespace; the result has
// the daemon's.
func (a *access) find(ctx context.Context, c control.Caller, pid int) (loop.ClientView, error) {
	host, err := a.hostPID(c, pid)
	if err != nil {
		return loop.ClientView{}, err
	}
	if c.PIDNamespace == 0 {
		pid = host // otherwise the caller does not learn it
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	s, err := a.loop.Client(ctx, host)
	switch {
	case errors.Is(err, loop.ErrUnknownPID):
		return loop.ClientView{}, control.Errorf(control.ErrNotFound, "see `xsched list`", "process %d is not managed", pid)
	case err != nil:
		return loop.ClientView{}, unavailable(err)
	}
	return s, mayChange(c, shownPID(c, s.Identity), s.User)
}

// mayChange refuses callers that do not own a process of the user.
func mayChange(c control.Caller, pid int, user identity.User) error {
	switch {
	case c.Owns(user):
		return nil
	case !c.User.Host():
		return control.Errorf(control.ErrNotAllowed, "see `xsched list`", "process %d does not belong to this container", pid)
	}
	return control.Errorf(control.ErrNotAllowed, "use sudo", "process %d belongs to %v", pid, user)
}

// sessions returns all managed processes.
func (a *access) sessions(ctx context.Context) ([]loop.ClientView, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	s, err := a.loop.Clients(ctx)
	return s, unavailable(err)
}

// known returns a process as it is before a change; the zero view if it is not managed.
func (a *access) known(ctx context.Context, c control.Caller, pid int) loop.ClientView {
	v, _ := a.find(ctx, c, pid)
	return v
}

// mayHave refuses hints beyond the caller's limits.
func (a *access) mayHave(c control.Caller, change *model.HintChange) error {
	if note := a.loop.MayHave(c.User, c.Groups, change); note != "" {
		return control.Errorf(control.ErrNotAllowed, "use sudo, or raise the user's cap in "+config.Default, "%s", note)
	}
	return nil
}

// shownPID returns the number by which a caller knows a process.
func shownPID(c control.Caller, s loop.Identity) int {
	if c.PIDNamespace != 0 {
		return s.LocalPID
	}
	return s.PID
}

// visible reports whether a caller may know of a process. Callers in a container see their own
// processes only, and none of another PID namespace.
func visible(c control.Caller, s *loop.ClientView) bool {
	return (c.User.Host() || c.Owns(s.User)) && (c.PIDNamespace == 0 || c.PIDNamespace == s.PIDNamespace)
}

// anonymous hides which process caused a preemption.
func anonymous(causes []control.Cause) []control.Cause {
	var out []control.Cause
	for _, c := range causes {
		if c.PID != 0 {
			c.PID, c.Reason = 0, "other"
		}
		if i := slices.IndexFunc(out, func(o control.Cause) bool { return o.Reason == c.Reason }); i >= 0 {
			out[i].Count += c.Count
		} else {
			out = append(out, c)
		}
	}
	return out
}

// onHost refuses callers in a container.
func onHost(c control.Caller, what string) error {
	if c.User.Host() {
		return nil
	}
	return control.Errorf(control.ErrNotAllowed, "use the control socket of the host", "%s are not available in a container", what)
}
