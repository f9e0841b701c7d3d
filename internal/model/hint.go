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
	for i := range hintFields {
		f := &hintFields[i]
		if f.Kind == HintName {
			continue // names of the engine's own are longer: they have their user in front
		}
		if err := f.Check(f.value(h)); err != nil {
			return err
		}
	}
	switch {
	case h.Nice < NiceMin || h.Nice > NiceMax:
		return &RangeError{fmt.Sprintf("nice %d is out of range", h.Nice), fmt.Sprintf("%d to %d", NiceMin, NiceMax)}
	case len(h.Gang) > GangNameMax:
		return &RangeError{fmt.Sprintf("gang has %d bytes", len(h.Gang)), fmt.Sprintf("up to %d", GangNameMax)}
	}
	return nil
}
