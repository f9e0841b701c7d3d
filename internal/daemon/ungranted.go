// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"golang.org/x/sys/unix"

	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// ungranted are the programs on GPUs that their pods were not granted. Each is reported once.
type ungranted struct{ reported map[targetKey]bool }

const ungrantedText = "the program uses a GPU that its pod was not granted: best effort there"

// report notes programs of the last sample. They are in the log, and in the journal as a fault.
func (u *ungranted) report(h *chronicle, programs []loop.ClientView) {
	now := map[targetKey]bool{}
	for i := range programs {
		p := &programs[i]
		for _, gpu := range p.Ungranted {
			key := targetKey{p.PID, gpu}
			if now[key] = true; u.reported[key] {
				continue
			}
			pod := h.terms.podOf(&p.Identity)
			h.log.Warn(ungrantedText, "pid", p.PID, "pod", pod.name(), "device", gpu.String())
			h.fault(&p.Identity, gpu.String(), 1, ungrantedText)
		}
	}
	u.reported = now
}

const unmanagedText = "a program that is not managed uses a GPU that its pod was not granted"

// unmanaged reports a program that is new on a GPU and not managed, if its pod has a grant of other GPUs. Nothing
// schedules it there.
func (h *chronicle) unmanaged(pid int, gpu model.DeviceID) {
	g := h.terms.grants.Load()
	if len(g.pods) == 0 {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended
	}
	defer func() { _ = unix.Close(fd) }()
	program := identity.ProgramOf(pid)
	peer, err := identity.OfProcess(fd)
	who := loop.Identity{PID: pid, PIDNamespace: peer.PIDNamespace, LocalPID: peer.LocalPID, User: peer.User, Program: &program}
	pod := g.of(&who)
	var t loop.Terms
	if pod.apply(&t); t.Grant.Allows(gpu) || identity.MeansEnd(err) {
		return
	}
	h.log.Warn(unmanagedText, "pid", pid, "pod", pod.name(), "device", gpu.String())
	h.fault(&who, gpu.String(), 1, unmanagedText)
}
