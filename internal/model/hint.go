// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"fmt"
	"time"
)

// Hint holds what a user or a program states about a queue, or about all queues of a process. The
// zero value of a field means unset.
//
// This struct is the single definition of every hint. A field with a `hint` tag is a hint; its type
// decides how a value is written. tools/hintgen writes the C, wire, Python and HTTP forms from the
// tags, and the command line, the environment and the simulator read them at run time. The tags:
//
//	hint   name in JSON, Python and C
//	flag   name of the flag of `xsched hint` and `xsched run`
//	env    environment variable
//	bit    bit of the wire format, with its name; fields of one bit are set together
//	range  smallest and largest value (microseconds for durations, bytes for names)
//	zero   what 0 means, where that needs a word
//	scope  "process": not allowed for a single queue
//	api    "no": a program can't set it through the C and Python interfaces
//	policies  names of the policies that read it; without: it counts under all of them
//	help   one line for --help
//
// Append new fields at the end: the order is that of the wire format.
type Hint struct {
	Priority Priority `hint:"priority" flag:"priority" env:"XSCHED_AUTO_XQUEUE_PRIORITY" bit:"0 PRIORITY" range:"-256..255" policies:"HPF HHPF LAX AWF SLO" help:"larger is more important; -256 never runs"`
	Level    Level    `hint:"level" flag:"level" env:"XSCHED_AUTO_XQUEUE_LEVEL" bit:"1 LEVEL" range:"0..3" scope:"process" api:"no" help:"preemption level: auto, 1 (hold launches), 2 (end of timeslice), 3 (mid-kernel)"`
	InFlight int      `hint:"in_flight" flag:"in-flight" env:"XSCHED_AUTO_XQUEUE_THRESHOLD" bit:"2 LIMITS" range:"0..1048576" zero:"daemon default" help:"Lv1: maximum launches in flight"`
	Batch    int      `hint:"batch" flag:"batch" env:"XSCHED_AUTO_XQUEUE_BATCH_SIZE" bit:"2 LIMITS" range:"0..1048576" zero:"daemon default" help:"Lv1: launches between two completion checks"`

	// Utilization is a weight where the shares do not add up to 100.
	Utilization int           `hint:"utilization" flag:"share" env:"XSCHED_AUTO_XQUEUE_UTILIZATION" bit:"3 UTILIZATION" range:"1..100" zero:"unset" policies:"UP PUP SPUP CFS" help:"share of the GPU in percent (UP, PUP, SPUP, CFS)"`
	Timeslice   time.Duration `hint:"timeslice_us" flag:"timeslice" env:"XSCHED_AUTO_XQUEUE_TIMESLICE" bit:"4 TIMESLICE" range:"100..10000000" zero:"policy default" help:"length of one turn on the GPU"`
	Deadline    time.Duration `hint:"deadline_us" flag:"deadline" env:"XSCHED_AUTO_XQUEUE_DEADLINE" bit:"5 DEADLINE" range:"0..1000000000000" zero:"none" policies:"EDF KEDF" help:"deadline of work, counted from the start of a busy period (EDF, KEDF)"`

	// Until Laxity ends the queue has LaxPriority, afterwards CriticalPriority.
	Laxity           time.Duration `hint:"laxity_us" flag:"laxity" env:"XSCHED_AUTO_XQUEUE_LAXITY" bit:"6 LAXITY" range:"0..1000000000000" zero:"none" policies:"LAX" help:"how long work may be deferred (LAX)"`
	LaxPriority      Priority      `hint:"lax_priority" flag:"lax-priority" env:"XSCHED_AUTO_XQUEUE_LAX_PRIORITY" bit:"6 LAXITY" range:"-256..255" policies:"LAX" help:"priority until the laxity ends"`
	CriticalPriority Priority      `hint:"critical_priority" flag:"critical-priority" env:"XSCHED_AUTO_XQUEUE_CRITICAL_PRIORITY" bit:"6 LAXITY" range:"-256..255" policies:"LAX" help:"priority after the laxity ended"`

	K            int  `hint:"k" flag:"k" env:"XSCHED_AUTO_XQUEUE_KDEADLINE" bit:"7 K" range:"0..1024" zero:"policy default" policies:"KEDF" help:"how many of the earliest deadlines may run together (KEDF)"`
	WindowActive bool `hint:"window_active" flag:"window-active" env:"XSCHED_WINDOW_ACTIVE" bit:"8 WINDOW_ACTIVE" policies:"AWF" help:"the user looks at a window of this program (AWF)"`
	SLO          SLO
	// Gang names queues that are scheduled together, across processes and devices.
	Gang string `hint:"gang" flag:"gang" env:"XSCHED_GANG" bit:"10 GANG" range:"0..63" zero:"none" help:"programs with the same name are suspended and resumed together"`
	// PerQueue: without it the queues of one process on one device are scheduled together.
	PerQueue bool `hint:"per_queue" flag:"per-queue" env:"XSCHED_GRANULARITY" bit:"11 PER_QUEUE" scope:"process" help:"schedule each queue by itself, at Lv1"`

	// Memory is a quota: an allocation beyond it fails as on a full device.
	Memory Bytes `hint:"memory" flag:"memory" env:"XSCHED_MEMORY" bit:"13 MEMORY" range:"1048576..1125899906842624" zero:"no quota" scope:"process" api:"no" help:"memory that the program may allocate on each GPU"`
	// Movable holds for what is allocated afterwards.
	Movable bool `hint:"movable" flag:"movable" env:"XSCHED_MOVABLE" bit:"14 MOVABLE" scope:"process" api:"no" help:"the program's GPU memory can be moved to host memory and back"`

	// Nice is the CPU nice value of the process. The daemon reads it from the system.
	Nice int
	// Cap limits what the other fields may achieve. Only the daemon sets it.
	Cap Cap `json:",omitzero"`
	// Pool names programs that have one Utilization together; empty: each has its own. Only the daemon sets it.
	Pool string `json:",omitempty"`
}

// Cap is the administrator's limit of a user. It bounds the rank that follows from any hint, not a
// single hint.
type Cap struct {
	On       bool     // false: no limit
	Priority Priority // highest rank that may count against other users
}

// SLO is a latency target: Percentile percent of the requests finish within Latency.
type SLO struct {
	Latency    time.Duration `hint:"slo_us" flag:"slo" env:"XSCHED_SLO_US" bit:"9 SLO" range:"0..1000000000000" zero:"none" policies:"SLO" help:"latency target of requests (SLO)"`
	Percentile float64       `hint:"slo_percentile" flag:"slo-percentile" env:"XSCHED_SLO_PERCENTILE" bit:"9 SLO" range:"100..9999" zero:"99" policies:"SLO" help:"percentile the SLO applies to"`
}

// Said reports whether there is a target.
func (s SLO) Said() bool { return s.Latency > 0 }

// P returns the percentile, 99 by default.
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

// Ranges that other packages need as constants. A test compares them with the tags.
const (
	UtilizationMax = 100
	TimesliceMin   = 100 * time.Microsecond
	TimesliceMax   = 10 * time.Second
	NiceMin        = -20
	NiceMax        = 19
	GangNameMax    = 128 // the engine prefixes gang names with their user
)

// PoolBestEffort is the pool of all programs that have together what the other pools leave of a GPU.
const PoolBestEffort = "best-effort"

// ErrHint is the class of all errors about hint values.
var ErrHint = errors.New("bad hint")

// Check returns an error for the first value out of range. Hints from outside must pass it before
// they reach the engine.
func (h *Hint) Check() error {
	for i := range hintFields {
		f := &hintFields[i]
		if f.Kind == HintName {
			continue // checked below: names inside the engine carry their user
		}
		if err := f.Check(f.Value(h)); err != nil {
			return err
		}
	}
	switch {
	case h.Nice < NiceMin || h.Nice > NiceMax:
		return &RangeError{fmt.Sprintf("nice %d is out of range", h.Nice), fmt.Sprintf("%d to %d", NiceMin, NiceMax)}
	case h.Cap.Priority < PriorityNever || h.Cap.Priority > PriorityMax:
		return &RangeError{fmt.Sprintf("cap %d is out of range", h.Cap.Priority), fmt.Sprintf("%d to %d", PriorityNever, PriorityMax)}
	case len(h.Gang) > GangNameMax:
		return &RangeError{fmt.Sprintf("gang has %d bytes", len(h.Gang)), fmt.Sprintf("up to %d", GangNameMax)}
	}
	return nil
}
