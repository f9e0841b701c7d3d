// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

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
	OnBus   bool // the host has a GPU for this driver; set when the driver is not loaded
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

// NodeRemedies are a driver's remedies for a device node that can't be opened.
type NodeRemedies struct {
	Container  string // the container lacks the node
	Missing    string
	Permission string
}

// AddNodes checks the device nodes of a driver. Only the first is essential: a GPU whose node can't
// be opened is merely absent.
func (d *Diagnosis) AddNodes(h Host, names []string, r NodeRemedies) {
	const check = "device nodes"
	bad := false
	for i, name := range names {
		status := Note
		if i == 0 {
			status = Missing
		}
		switch err := h.Open(h.Path(name)); {
		case err == nil:
			continue
		case errors.Is(err, fs.ErrNotExist) && h.InContainer:
			d.Add(check, status, "this container has no "+name, r.Container)
		case errors.Is(err, fs.ErrNotExist):
			d.Add(check, status, name+" does not exist", r.Missing)
		case errors.Is(err, fs.ErrPermission):
			d.Add(check, status, name+": this user lacks permission to open it", r.Permission+" (see `ls -l "+name+"`)")
		default:
			d.Add(check, status, fmt.Sprintf("%s: %v", name, err), "check `dmesg`")
		}
		bad = true
	}
	if !bad {
		d.Add(check, OK, strings.Join(names, ", "), "")
	}
}

// Host abstracts the machine under diagnosis, so that tests can substitute it.
type Host struct {
	Root   string // of the file system
	UID    int
	Getenv func(string) string
	// Open tries to open a device node for reading and writing.
	Open func(path string) error
	// Ask opens a device node and makes one ioctl.
	Ask func(path string, request uint32, arg []byte) error
	// Ptrace is whether the system call is allowed at all; nil error: it is.
	Ptrace func() error
	// InContainer: device nodes may be missing on purpose.
	InContainer bool
	// StateDir and Version are as in Options.
	StateDir, Version string
	// ComputeModes holds what a running daemon reports, by PCI address.
	ComputeModes map[string]string
}

// Path returns the path of a file below Root.
func (h Host) Path(name string) string { return filepath.Join(h.Root, name) }
