// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"fmt"
	"time"
)

// Hint is what the user or the program says about a queue, or about all queues
// of a process. A zero value means that nothing was said.
type Hint struct {
	Priority Priority
	Level    Level
	InFlight int // Lv1: most launches in flight
	Batch    int // Lv1: launches between two completion checks

	// Utilization is the share of a device in percent, 1..100, and the weight
	// against the others where the shares do not add up.
	Utilization int
	// Timeslice is how long one turn on the device may last.
	Timeslice time.Duration

	// Deadline is when work must be done, counted from when the queue became
	// busy. K is how many of the earliest deadlines may run at the same time.
	Deadline time.Duration
	K        int

	// Laxity is how long after it became busy a queue may still be put off. Until
	// then it has LaxPriority, after that CriticalPriority.
	Laxity           time.Duration
	LaxPriority      Priority
	CriticalPriority Priority

	// WindowActive: the user looks at a window of this process now.
	WindowActive bool
	// Nice is the CPU nice value of the process, -20 (important) to 19.
	Nice int
	// SLO is the latency that the requests of this process shall have.
	SLO SLO
	// Gang: queues with the same name run and stop together, whatever their
	// process and device.
	Gang string
	// PerQueue: the queues of this process are scheduled one by one. Without it
	// those of one process on one device run and stop together.
	PerQueue bool
}

// SLO is a target: of the requests Percentile percent are done within Latency.
type SLO struct {
	Percentile float64
	Latency    time.Duration
}

// Said says whether there is a target at all.
func (s SLO) Said() bool { return s.Latency > 0 }

// P is the percentile with its default, 99.
func (s SLO) P() float64 {
	if s.Percentile == 0 {
		return 99
	}
	return s.Percentile
}

func (s SLO) String() string {
	if !s.Said() {
		return "none"
	}
	return fmt.Sprintf("P%v <= %v", s.P(), s.Latency)
}

// Ranges of what a hint may say.
const (
	UtilizationMax = 100
	TimesliceMin   = 100 * time.Microsecond
	TimesliceMax   = 10 * time.Second
	NiceMin        = -20
	NiceMax        = 19
	GangNameMax    = 128
)

// ErrHint is what Check returns errors of.
var ErrHint = errors.New("bad hint")

// Check says what is wrong with a hint, nil if nothing is. Whoever takes hints
// from outside asks it before they reach the engine.
func (h *Hint) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrHint, fmt.Sprintf(format, args...))
	}
	for _, p := range []Priority{h.Priority, h.LaxPriority, h.CriticalPriority} {
		if p < PriorityNever || p > PriorityMax {
			return bad("priority %d is not in %d..%d", p, PriorityNever, PriorityMax)
		}
	}
	switch {
	case h.Level < LevelAuto || h.Level > LevelInterrupt:
		return bad("level %d is not in 0..3", int(h.Level))
	case h.InFlight < 0 || h.Batch < 0:
		return bad("limits must not be negative")
	case h.Utilization < 0 || h.Utilization > UtilizationMax:
		return bad("utilization %d is not in 0..%d", h.Utilization, UtilizationMax)
	case h.Timeslice != 0 && (h.Timeslice < TimesliceMin || h.Timeslice > TimesliceMax):
		return bad("timeslice %v is not in %v..%v", h.Timeslice, TimesliceMin, TimesliceMax)
	case h.Deadline < 0 || h.Laxity < 0:
		return bad("deadline and laxity must not be negative")
	case h.K < 0:
		return bad("k %d must not be negative", h.K)
	case h.Nice < NiceMin || h.Nice > NiceMax:
		return bad("nice %d is not in %d..%d", h.Nice, NiceMin, NiceMax)
	case h.SLO.Latency < 0:
		return bad("SLO latency %v must not be negative", h.SLO.Latency)
	case h.SLO.Percentile != 0 && !(h.SLO.Percentile >= 1 && h.SLO.Percentile < 100):
		return bad("SLO percentile %v is not in [1, 100)", h.SLO.Percentile)
	case len(h.Gang) > GangNameMax:
		return bad("gang name has %d bytes, at most %d", len(h.Gang), GangNameMax)
	}
	return nil
}
