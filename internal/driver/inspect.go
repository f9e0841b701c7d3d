// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"io"
	"text/tabwriter"
)

// Inspector is a driver that shows a process's queues in driver terms, for `xsched queues`.
type Inspector interface {
	Driver
	// Inspect reads the host's view of a process. Errors are an ambiguous pid and unreadable dumps;
	// missing facts become remarks.
	Inspect(from InspectionSource, pid int) (Inspection, error)
}

// InspectionSource locates the host's view of a process.
type InspectionSource struct {
	Root  string   // file system root; empty: read only the dumps
	Dumps []string // saved files of the driver, instead of those below Root
}

// Inspection is one process on one driver.
type Inspection interface {
	// Found reports whether there is anything to show.
	Found() bool
	// HostPID returns the pid in the host's namespace; 0: unknown.
	HostPID() int
	// Join adds the daemon's view of the process; JoinLog adds the runtime log's.
	Join(p Process, queues []HardwareQueue)
	JoinLog(logged []LoggedQueue)
	Notes() []Remark
	// Data is encoded as JSON under the driver's name.
	Data() any
	WriteTable(w io.Writer)
	WritePython(w io.Writer)
}

// Process is the daemon's view of an inspected process.
type Process struct {
	PID, ClientPID int
	Command        string
}

// Remark names a fact that a source could not provide.
type Remark struct {
	Source string `json:"source"`
	Text   string `json:"text"`
}

// LoggedQueue is a hardware queue in a runtime log.
type LoggedQueue struct {
	PID      int // 0: not in the log
	Ring     uint64
	Software []string // streams mapped to the queue
	ID       int32    // the runtime's counter, not the driver's number
	Priority string
	Packets  uint32 // capacity; 0: unknown
	Kernels  uint64
	Counted  bool // the log counts kernels per queue
	Deleted  bool
}

// NewTable returns a writer that aligns columns.
func NewTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }
