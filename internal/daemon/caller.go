// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"

	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/loop"
)

// maxParents bounds the search for the managed parent of a caller.
const maxParents = 64

// hostPID returns the process that a caller means, in the daemon's PID namespace. A number from
// another namespace is translated or refused, never taken for one of the host.
func (d *Daemon) hostPID(c control.Caller, pid int) (int, error) {
	switch {
	case pid == control.Self:
		managed := d.server.PIDs()
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
	if host := d.server.HostPID(c.PIDNamespace, pid); host != 0 {
		return host, nil
	}
	return 0, control.Errorf(control.ErrNotAllowed, "see `xsched list`; only the host can attach", "process %d of this PID namespace is not managed", pid)
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

// show returns a process as a caller may see it, without a PID of another namespace.
func (d *Daemon) show(c control.Caller, s loop.ClientView) (p control.Process, ok bool) {
	if !visible(c, &s) {
		return p, false
	}
	p = process(s).For(c)
	p.PID, p.User = shownPID(c, s.Identity), d.users.of(s.User)
	p.Impaired = d.chronicle.threads.of(s.ID)
	pod := d.terms.podOf(&s.Identity)
	p.Namespace, p.Pod, p.PodContainer, p.Class = pod.namespace, pod.pod, pod.container, pod.class
	if !c.User.Host() {
		for i := range p.Queues {
			p.Queues[i].PreemptedBy = anonymous(p.Queues[i].PreemptedBy)
		}
	}
	return p, true
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
