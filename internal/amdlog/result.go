// SPDX-License-Identifier: Apache-2.0

package amdlog

import "xsched/internal/report"

// Report is the output of `xsched amdlog --json`.
type Report struct {
	Kernels    uint64 `json:"kernels"` // in all logs, each process by its basis
	Dispatches uint64 `json:"dispatches"`
	Launches   uint64 `json:"launches"`
	Commands   uint64 `json:"commands"`
	Lines      Lines  `json:"lines"`
	Logs       []*Log `json:"logs"`
}

// NewReport sums up logs.
func NewReport(logs ...*Log) *Report {
	r := &Report{Logs: logs}
	for _, l := range logs {
		r.Kernels += l.Kernels
		r.Dispatches += l.Dispatches
		r.Launches += l.Launches
		r.Commands += l.Commands
		r.Lines.add(&l.Lines)
	}
	return r
}

// Log is the analysis of one file.
type Log struct {
	Name          string            `json:"name"`
	Bytes         int64             `json:"bytes"` // after decompression
	Compressed    bool              `json:"compressed,omitempty"`
	ReadError     string            `json:"read_error,omitempty"` // reading stopped at this error
	Lines         Lines             `json:"lines"`
	Prefixes      map[string]uint64 `json:"prefixes"` // records by the form of their prefix
	Levels        map[string]uint64 `json:"levels"`   // records by their log level
	Kernels       uint64            `json:"kernels"`  // each process by its basis
	Dispatches    uint64            `json:"dispatches"`
	DispatchLines uint64            `json:"dispatch_lines"` // lines with at least one dispatch, as grep -c counts
	Orphans       uint64            `json:"orphans"`        // kernels of unknown process: the start of their line is missing
	Launches      uint64            `json:"launches"`       // named kernels; a log at level 3 has no dispatches
	Commands      uint64            `json:"commands"`       // enqueued kernels, which AMD_LOG_MASK can select alone
	Barriers      uint64            `json:"barriers"`
	Failed        uint64            `json:"failed_launches"` // calls that launch kernels and returned an error
	FirstUS       uint64            `json:"first_us"`
	LastUS        uint64            `json:"last_us"`
	Processes     []*Process        `json:"processes"`
	// Dropped counts events of processes beyond the limit.
	Dropped uint64 `json:"dropped,omitempty"`
}

// Process is the activity of one process.
type Process struct {
	PID        uint32         `json:"pid"` // 0 if unknown; in a container, the PID of its namespace
	Threads    int            `json:"threads"`
	Records    uint64         `json:"records"`
	FirstUS    uint64         `json:"first_us"`
	LastUS     uint64         `json:"last_us"`
	Dispatches uint64         `json:"dispatches"`
	Launches   uint64         `json:"launches"`
	Commands   uint64         `json:"commands"`
	Barriers   uint64         `json:"barriers"`
	Failed     uint64         `json:"failed_launches"`
	Failures   []Failure      `json:"failures,omitempty"`
	Activity                  // by the most exact record that the log has (see Basis)
	Basis      string         `json:"basis"` // "dispatch", "launch", "command" or ""
	Queues     []*Queue       `json:"queues"`
	Streams    []StreamCount  `json:"streams,omitempty"` // by commands
	Life       []QueueEvent   `json:"queue_events"`
	LifeCount  map[string]int `json:"queue_event_counts"`
}

// Records that kernels are counted by, the most exact first.
const (
	basisDispatch = "dispatch"
	basisLaunch   = "launch"
	basisCommand  = "command"
)

// Failure is the number of launches by one call that returned one error.
type Failure struct {
	Call  string `json:"call"`
	Error string `json:"error"`
	Count uint64 `json:"count"`
}

// StreamCount is the number of kernels enqueued to a stream's queue object.
type StreamCount struct {
	Queue   string `json:"queue"` // address in the process; not a ring
	Kernels uint64 `json:"kernels"`
}

// Activity describes the kernels submitted by a process or to a queue.
type Activity struct {
	Kernels    uint64               `json:"kernels"`
	RateHz     float64              `json:"rate_hz"` // between the first kernel and the last
	Intervals  *report.Distribution `json:"intervals_us,omitempty"`
	TimeJumps  uint64               `json:"time_jumps,omitempty"` // timestamps that step back, or ahead by more than a day
	Grids      *Grids               `json:"grids,omitempty"`
	TopKernels []KernelCount        `json:"top_kernels,omitempty"`
	Names      int                  `json:"distinct_kernels"`
	Timeline   *Timeline            `json:"timeline,omitempty"`
}

// Grids describes the sizes of kernels.
type Grids struct {
	Items    *report.Distribution `json:"work_items"`
	Distinct int                  `json:"distinct"`
	Top      []GridCount          `json:"top"`
	Without  uint64               `json:"without,omitempty"` // clustered or truncated: no grid in the line
}

// GridCount is the number of kernels of one size, in work-items.
type GridCount struct {
	Grid      [3]uint32 `json:"grid"`
	Workgroup [3]uint32 `json:"workgroup"`
	Count     uint64    `json:"count"`
}

// KernelCount is the number of submissions of one kernel.
type KernelCount struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

// Queue is a hardware queue. HWq is the address of its ring, under which the
// kernel driver lists it too.
type Queue struct {
	HWq      string   `json:"hwq"`
	SWq      []string `json:"swq,omitempty"`
	ID       int32    `json:"id"`       // HSA's counter, not the driver's queue id; -1 unknown
	Size     uint32   `json:"size"`     // in packets, 0 unknown
	Priority string   `json:"priority"` // low, normal, high, "" unknown
	Created  uint64   `json:"created"`
	Deleted  uint64   `json:"deleted"`
	Ended    bool     `json:"ended"` // the last of these was a deletion
	Acquired uint64   `json:"acquired"`
	Released uint64   `json:"released"`
	Barriers uint64   `json:"barriers"`
	Activity
	Lag       *report.Distribution `json:"lag_packets,omitempty"` // written but not read yet, as each packet was submitted
	LagBroken uint64               `json:"lag_implausible,omitempty"`
}

// QueueEvent is a creation or deletion of a hardware queue.
type QueueEvent struct {
	TimeUS   uint64 `json:"time_us"`
	Kind     string `json:"kind"`          // created, deleted
	HWq      string `json:"hwq,omitempty"` // empty: the log names the software queue only
	SWq      string `json:"swq,omitempty"`
	Size     uint32 `json:"size,omitempty"`
	Priority string `json:"priority,omitempty"`
}
