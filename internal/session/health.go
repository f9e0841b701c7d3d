// SPDX-License-Identifier: Apache-2.0

package session

import (
	"time"

	"xsched/internal/health"
)

// A part counts as dead after these times. All of its own waits are shorter, except those for a device.
const (
	partLimit    = 10 * time.Second
	niceLimit    = 30 * time.Second // a period reads /proc of each session
	releaseLimit = 30 * time.Second // above restoreTime and lateTime, for a device that is slow
)

// parts are those of a server. A restart helps those that only work on sessions; the others wait for a
// driver.
type parts struct {
	accept, reaper, nice, quarantine *health.Part
	handshakes, probes, release      *health.Calls
}

// addParts adds the parts to a monitor; nil: there is none.
func addParts(m *health.Monitor) parts {
	if m == nil {
		return parts{}
	}
	p := parts{
		accept: m.Add("accept of programs", partLimit, true), reaper: m.Add("session reaper", partLimit, true),
		nice:       m.Add("nice values of programs", niceLimit, true),
		quarantine: m.Add("quarantine process", partLimit, true), // strangers can't delay its answers
		handshakes: m.AddCalls("handshakes of programs", partLimit, true),
		probes:     m.AddCalls("driver probes", releaseLimit, false), release: m.AddCalls("release of programs' GPUs", releaseLimit, false),
	}
	p.accept.End()
	p.reaper.End()
	return p
}
