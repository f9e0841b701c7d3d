// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"time"

	"xsched/internal/alert"
	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/guardian"
	"xsched/internal/journal"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// faults are the counters of which an increase is a fault, as of the last sample.
type faults struct {
	targets    map[targetKey]targetState
	recoveries map[model.SessionID]uint64
	restarts   int
	ungranted  ungranted
	guardian   *guardian.Client
}

type targetKey struct {
	pid    int
	device model.DeviceID
}

type targetState struct {
	errors uint64
	stuck  bool
	off    string
}

// stuckTime is how long an operation on a device may take before it is a fault.
const stuckTime = 100 * time.Millisecond

// find compares the counters of workers and programs with those of the last sample. It makes at
// most a few entries per program and second.
func (f *faults) find(h *chronicle, programs []loop.ClientView) {
	byPID := make(map[int]*loop.Identity, len(programs))
	recoveries := make(map[model.SessionID]uint64, len(programs))
	for i := range programs {
		p := &programs[i]
		byPID[p.PID] = &p.Identity
		recoveries[p.ID] = p.Counters.Recoveries
		if was, known := f.recoveries[p.ID]; known && p.Counters.Recoveries > was {
			h.fault(&p.Identity, "", p.Counters.Recoveries-was, "recovered by itself, because the daemon was silent")
		}
	}
	f.recoveries = recoveries
	f.ungranted.report(h, programs)
	now := clock.Now()
	targets := map[targetKey]targetState{}
	if len(programs) > 0 {
		for _, t := range h.access.server.Stats().Targets {
			key, was := targetKey{t.PID, t.Device}, f.targets[targetKey{t.PID, t.Device}]
			is := targetState{t.Errors, t.StuckSince != 0 && now.Sub(t.StuckSince) >= stuckTime, t.Off}
			targets[key] = is
			who := byPID[t.PID]
			if who == nil {
				continue
			}
			device := t.Device.String()
			if is.errors > was.errors {
				h.fault(who, device, is.errors-was.errors, "the device refused an operation: "+t.LastError)
			}
			if is.stuck && !was.stuck {
				h.fault(who, device, 1, "a device operation does not return")
			}
			if is.off != was.off {
				if is.off != "" {
					h.fault(who, device, 1, "scheduling is off: "+is.off)
				} else {
					h.enterFault(who, device, 1, "scheduling is on again")
				}
			}
		}
	}
	f.targets = targets
	if _, _, restarts := f.guardian.Stats(); restarts > f.restarts {
		h.fault(nil, "", uint64(restarts-f.restarts), "the guardian was restarted")
		f.restarts = restarts
	}
}

// fault adds an entry and raises an alert; who is nil if no program is concerned.
func (h *chronicle) fault(who *loop.Identity, device string, count uint64, text string) {
	h.alerts.raise(alert.Fault, who, h.enterFault(who, device, count, text), 0)
}

// enterFault adds an entry.
func (h *chronicle) enterFault(who *loop.Identity, device string, count uint64, text string) journal.Entry {
	e := journal.Entry{Kind: control.JournalFault, Device: device, Count: count, Detail: text}
	user := h.access.self()
	if who != nil {
		e.Program, user = h.programOf(who), who.User
	}
	if count > 1 {
		e.Detail = fmt.Sprintf("%s (%d times)", text, count)
	}
	h.journal.Add(user, e)
	return e
}
