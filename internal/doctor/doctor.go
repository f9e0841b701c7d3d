// SPDX-License-Identifier: Apache-2.0

// Package doctor reports what XSched can do on a host, what limits it, and the remedy. Drivers add
// their own checks. Callers pass in everything it examines, so that tests cover every case. The
// examination changes nothing.
package doctor

import (
	"path/filepath"
	"slices"
	"strings"

	"xsched/internal/driver"
)

type Check = driver.Check

type Status = driver.Status

// Missing marks an essential check: without it nothing is scheduled.
const (
	OK      = driver.OK
	Note    = driver.Note
	Limited = driver.Limited
	Missing = driver.Missing
)

// Report is the result of an examination.
type Report struct {
	Schema int          `json:"schema"` // of this JSON; a number stands for the same fields forever
	OK     bool         `json:"ok"`     // nothing essential is missing
	Level  int          `json:"level"`  // highest level to expect; 0: none
	Driver string       `json:"driver,omitempty"`
	GPUs   []driver.GPU `json:"gpus"`
	Checks []Check      `json:"checks"` // the most important first
}

// Schema is the version of the reports. New fields do not change it.
const Schema = 1

// Device is a running daemon's report on a GPU.
type Device struct {
	ID, ComputeMode, LevelReason string
	MaxLevel                     int
	Probed                       bool
}

// Daemon describes a running daemon.
type Daemon struct {
	Dir, Version, Scheduling string
	// Dead is the part of the daemon that is dead, in a sentence; empty: all work.
	Dead     string
	UID      int
	Virtual  bool
	Platform string // of the virtual GPU
	Devices  []Device
}

// Machine is the host under examination.
type Machine struct {
	Root   string // file system root; "/" on a real host
	UID    int
	Getenv func(string) string
	Kernel Kernel
	// Drivers to examine.
	Drivers []driver.Driver
	// Open tries to open a device node for reading and writing; Ask makes one ioctl on it.
	Open func(path string) error
	Ask  func(path string, request uint32, arg []byte) error
	// StateDir holds the daemons' evidence; Version is XSched's version.
	StateDir, Version string
	// Dir is the daemon's directory; Cache returns the directory for the unpacked shim.
	Dir   string
	Cache func() (string, error)
	// Shim unpacks the shim and returns its path; Load tries to preload it.
	Shim func() (string, error)
	Load func(path string) error
	// Daemon queries the running daemon.
	Daemon func() (Daemon, error)
}

// Kernel probes kernel features; nil means supported.
type Kernel interface {
	Pidfd() error
	PidfdGetfd() error
	MemfdSeals() error
	PeerPidfd() error
	Ptrace() error
	Realtime() error // SCHED_FIFO for a thread of ours
	Nice() error     // nice -10
}

// examination is a report under construction.
type examination struct {
	Machine
	report Report
	daemon *Daemon // nil: no daemon responds
}

// Examine runs all checks.
func Examine(m Machine) Report {
	e := &examination{Machine: m, report: Report{Schema: Schema, GPUs: []driver.GPU{}, Level: 1}}
	d, err := m.Daemon()
	if err == nil {
		e.daemon = &d
	}
	for _, look := range []func(){
		e.kernel, e.drivers, e.attach, e.scheduling, e.runtimeDir, e.cacheDir, e.shim, func() { e.service(err) },
	} {
		look()
	}
	e.report.OK = true
	for _, c := range e.report.Checks {
		if c.Status == Missing {
			e.report.OK, e.report.Level = false, 0
		}
	}
	byImportance(e.report.Checks)
	return e.report
}

// Drivers examines only the drivers and the rights to attach, for a daemon that starts.
func Drivers(m Machine) []Check {
	e := &examination{Machine: m}
	e.drivers()
	e.attach()
	return e.report.Checks
}

func (e *examination) add(name string, s Status, detail, remedy string) {
	e.report.Checks = append(e.report.Checks, Check{Name: name, Status: s, Detail: detail, Remedy: remedy})
}

// drivers examines each driver. An absent driver is not a defect if another is present.
func (e *examination) drivers() {
	h := e.host()
	var versions []string
	var loaded, absent []driver.Diagnosis
	works := false
	for _, d := range e.Drivers {
		x := d.Diagnose(h)
		if !x.Loaded {
			absent = append(absent, x)
			continue
		}
		fine := !lacks(x.Checks)
		if fine || e.virtual() {
			e.report.Level = max(e.report.Level, int(x.Level))
		}
		works = works || fine
		loaded, versions = append(loaded, x), append(versions, x.Version)
	}
	e.report.Driver = strings.Join(versions, ", ")
	for _, x := range loaded {
		e.report.GPUs = append(e.report.GPUs, x.GPUs...)
		for _, c := range x.Checks {
			switch {
			case c.Status == Missing && e.virtual():
				c.Status = Note
			case c.Status == Missing && works:
				c.Status = Limited // another driver compensates
			}
			e.report.Checks = append(e.report.Checks, c)
		}
	}
	e.absent(absent, len(loaded) > 0)
}

// absent reports drivers that are not loaded: those of GPUs on the bus, or all of them if nothing
// tells which one this host needs.
func (e *examination) absent(all []driver.Diagnosis, loaded bool) {
	onBus := slices.DeleteFunc(slices.Clone(all), func(x driver.Diagnosis) bool { return !x.OnBus })
	if loaded {
		for _, x := range onBus {
			e.add("driver", Note, x.Absent, x.Remedy)
		}
		return
	}
	if len(onBus) > 0 {
		all = onBus
	}
	var why, remedies []string
	for _, x := range all {
		why, remedies = append(why, x.Absent), append(remedies, x.Remedy)
	}
	status := Missing
	if e.virtual() {
		status, e.report.Level = Note, 3
	}
	e.add("driver", status, strings.Join(why, "; "), strings.Join(remedies, ", or ")+"; `xsched serve --virtual` works without one")
}

// host is what drivers may examine.
func (e *examination) host() driver.Host {
	h := driver.Host{
		Root: e.Root, UID: e.UID, Getenv: e.Getenv, Open: e.Open, Ask: e.Ask, Ptrace: e.Kernel.Ptrace,
		InContainer: e.inContainer(), ComputeModes: map[string]string{}, StateDir: e.StateDir, Version: e.Version,
	}
	if e.daemon != nil {
		for _, d := range e.daemon.Devices {
			h.ComputeModes[d.ID] = d.ComputeMode
		}
	}
	return h
}

func lacks(checks []Check) bool {
	for _, c := range checks {
		if c.Status == Missing {
			return true
		}
	}
	return false
}

// virtual reports a daemon with a virtual GPU, which excuses a missing real one.
func (e *examination) virtual() bool { return e.daemon != nil && e.daemon.Virtual }

func (e *examination) path(name string) string { return filepath.Join(e.Root, name) }
