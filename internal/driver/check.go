// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"path/filepath"

	"xsched/internal/model"
)

// Status is the outcome of one `xsched doctor` check.
type Status string

// Missing marks an essential check: without it the driver schedules nothing.
const (
	OK      Status = "ok"
	Note    Status = "note"    // no loss of function
	Limited Status = "limited" // a feature is degraded or unavailable
	Missing Status = "missing"
)

// Check is one line of the doctor's report.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// GPU is one device of a driver.
type GPU struct {
	PCI    string `json:"pci"`
	Name   string `json:"name"`
	Driver string `json:"driver"`
}

// Diagnosis is a driver's section of the report.
type Diagnosis struct {
	Loaded  bool // the kernel module is loaded
	Absent  string
	Remedy  string // set when the driver is not loaded
	Version string
	Level   model.Level // highest level to expect
	GPUs    []GPU
	Checks  []Check
}

// Add appends a check.
func (d *Diagnosis) Add(name string, s Status, detail, remedy string) {
	d.Checks = append(d.Checks, Check{name, s, detail, remedy})
}

// Host abstracts the machine under diagnosis, so that tests can substitute it.
type Host struct {
	Root   string // of the file system
	UID    int
	Getenv func(string) string
	// Open tries to open a device node for reading and writing.
	Open func(path string) error
	// InContainer: device nodes may be missing on purpose.
	InContainer bool
	// StateDir and Version are as in Options.
	StateDir, Version string
	// ComputeModes holds what a running daemon reports, by PCI address.
	ComputeModes map[string]string
}

// Path returns the path of a file below Root.
func (h Host) Path(name string) string { return filepath.Join(h.Root, name) }
