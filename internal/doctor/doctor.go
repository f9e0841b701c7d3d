// SPDX-License-Identifier: Apache-2.0

// Package doctor looks at a machine and says what XSched can do there, what is
// in the way, and what to do about it. All that it looks at is handed in, so
// that every case can be made in a test; it changes nothing.
package doctor

import (
	"path/filepath"

	"xsched/internal/driver/nvidia"
)

// Status of one check.
type Status string

// A missing check is essential: without it nothing is scheduled here.
const (
	OK      Status = "ok"
	Note    Status = "note"    // as it should be, or a matter of taste
	Limited Status = "limited" // something works less well, or not at all; the rest does
	Missing Status = "missing"
)

// Check is one line of the report.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Report is everything that was looked at.
type Report struct {
	OK     bool         `json:"ok"`    // nothing essential is missing
	Level  int          `json:"level"` // the best that can be expected; 0: none
	Driver string       `json:"driver,omitempty"`
	GPUs   []nvidia.GPU `json:"gpus"`
	Checks []Check      `json:"checks"`
}

// Device is what a running daemon says about a GPU.
type Device struct {
	ID, ComputeMode, LevelReason string
	MaxLevel                     int
	Probed                       bool
}

// Daemon is a daemon that answers.
type Daemon struct {
	Dir, Version, Scheduling string
	Virtual                  bool
	Devices                  []Device
}

// Machine is what is looked at.
type Machine struct {
	Root   string // of the file system; "/" on a real one
	UID    int
	Getenv func(string) string
	Kernel Kernel
	// Open tries to open a device node for reading and writing.
	Open func(path string) error
	// Dir is the daemon's folder; Cache where the shim is unpacked, or why not.
	Dir   string
	Cache func() (string, error)
	// Shim unpacks the shim and returns its path; Load tries to preload it.
	Shim func() (string, error)
	Load func(path string) error
	// Daemon asks the running one.
	Daemon func() (Daemon, error)
}

// Kernel is what is asked of the kernel; nil is yes.
type Kernel interface {
	Pidfd() error
	PidfdGetfd() error
	MemfdSeals() error
	PeerPidfd() error
	Realtime() error // SCHED_FIFO for a thread of ours
	Nice() error     // nice -10
}

// examination is a report in the making.
type examination struct {
	Machine
	system nvidia.System
	report Report
	daemon *Daemon // nil: none answers
}

// Examine looks at everything.
func Examine(m Machine) Report {
	e := &examination{Machine: m, system: nvidia.System{Root: m.Root}, report: Report{GPUs: []nvidia.GPU{}, Level: 1}}
	d, err := m.Daemon()
	if err == nil {
		e.daemon = &d
	}
	for _, look := range []func(){
		e.kernel, e.driver, e.nodes, e.gpus, e.mps, e.mig, e.computeMode,
		e.attach, e.scheduling, e.runtimeDir, e.cacheDir, e.shim, func() { e.service(err) },
	} {
		look()
	}
	e.report.OK = true
	for _, c := range e.report.Checks {
		if c.Status == Missing {
			e.report.OK, e.report.Level = false, 0
		}
	}
	return e.report
}

func (e *examination) add(name string, s Status, detail, remedy string) {
	e.report.Checks = append(e.report.Checks, Check{name, s, detail, remedy})
}

func (e *examination) path(name string) string { return filepath.Join(e.Root, name) }

// essential is Missing, unless a virtual GPU is in use: then a real one may be missing.
func (e *examination) essential() Status {
	if e.daemon != nil && e.daemon.Virtual {
		return Note
	}
	return Missing
}
