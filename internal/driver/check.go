// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"path/filepath"

	"xsched/internal/model"
)

// Status of one check of `xsched doctor`.
type Status string

// A missing check is essential: without it nothing is scheduled on this driver.
const (
	OK      Status = "ok"
	Note    Status = "note"    // nothing is lost
	Limited Status = "limited" // something works less well, or not at all
	Missing Status = "missing"
)

// Check is one line of the doctor's report.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// GPU is one that a driver shows.
type GPU struct {
	PCI    string `json:"pci"`
	Name   string `json:"name"`
	Driver string `json:"driver"`
}

// Diagnosis is a driver's part of the report.
type Diagnosis struct {
	Loaded  bool // the kernel has the driver
	Absent  string
	Remedy  string // when it is not loaded
	Version string
	Level   model.Level // the best to expect
	GPUs    []GPU
	Checks  []Check
}

// Add appends a check.
func (d *Diagnosis) Add(name string, s Status, detail, remedy string) {
	d.Checks = append(d.Checks, Check{name, s, detail, remedy})
}

// Host is what a diagnosis may look at; everything is handed in, for tests.
type Host struct {
	Root   string // of the file system
	UID    int
	Getenv func(string) string
	// Open tries to open a device node for reading and writing.
	Open func(path string) error
	// InContainer: device nodes may be missing on purpose.
	InContainer bool
	// StateDir and Version are those of Options.
	StateDir, Version string
	// ComputeModes is what a running daemon reports, by PCI address.
	ComputeModes map[string]string
}

// Path is a file below the root.
func (h Host) Path(name string) string { return filepath.Join(h.Root, name) }
