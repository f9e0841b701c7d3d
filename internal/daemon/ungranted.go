// SPDX-License-Identifier: Apache-2.0

package daemon

import (
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

// podWithout returns the pod of an unmanaged program that has a grant of other GPUs than this one; empty: there
// is none.
func (g *grants) podWithout(pid int, gpu model.DeviceID) string {
	if len(g.pods) == 0 {
		return ""
	}
	program := identity.ProgramOf(pid)
	pod := g.of(&loop.Identity{Program: &program})
	var t loop.Terms
	if pod.apply(&t); t.Grant.Allows(gpu) {
		return ""
	}
	return pod.name()
}
