// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"io"
	"text/tabwriter"
)

// Inspector is a driver that shows a process's queues in its own terms, for `xsched queues`.
type Inspector interface {
	Driver
	// Inspect reads what the host shows of a process; root is the file system's.
	// An error means that the pid is ambiguous; what is merely unknown is a note.
	Inspect(root string, pid int) (Inspection, error)
}

// Inspection is one process on one driver.
type Inspection interface {
	// Found: there is something to show.
	Found() bool
	// HostPID is the process as the host numbers it; 0: unknown.
	HostPID() int
	// Join adds what a daemon knows of the process; JoinLog what a log of its runtime says.
	Join(p Process, queues []HardwareQueue)
	JoinLog(logged []LoggedQueue)
	Notes() []Remark
	// Data is encoded as JSON under the driver's name.
	Data() any
	WriteTable(w io.Writer)
	WritePython(w io.Writer)
}

// Process is what a daemon knows of an inspected process.
type Process struct {
	PID, ClientPID int
	Command        string
}

// Remark is something that a source could not tell.
type Remark struct {
	Source string `json:"source"`
	Text   string `json:"text"`
}

// LoggedQueue is a hardware queue in the log of a runtime.
type LoggedQueue struct {
	PID      int // 0: the log does not say
	Ring     uint64
	Software []string // streams that were mapped to it
	ID       int32    // the runtime's counter, not the driver's number
	Priority string
	Kernels  uint64
}

// NewTable aligns columns.
func NewTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }
