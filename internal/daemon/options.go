// SPDX-License-Identifier: Apache-2.0

// Package daemon assembles `xsched serve` from sessions, loop, engine, drivers and guardian, and owns who
// may see and change what: settings, hints, grants, holds, journal. It must know neither how requests
// arrive, nor how the engine decides, nor any vendor.
package daemon

import (
	"log/slog"
	"time"

	"xsched/internal/alert"
	"xsched/internal/budget"
	"xsched/internal/config"
	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/health"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session"
)

// Options configure Start. The zero value is a user's daemon with default settings.
type Options struct {
	// Dir holds the sockets; empty: control.DefaultDir.
	Dir string
	// Policy and Mode are the initial ones; empty: the engine's defaults.
	Policy string
	Mode   model.Mode
	// ModeLevel is the level of mode "level".
	ModeLevel model.Level
	// Quantum, StarvationBound and Hold override the engine's defaults unless 0; below 0: none.
	Quantum, StarvationBound, Hold time.Duration

	// Virtual uses a virtual GPU in place of the kernel drivers.
	Virtual bool
	// Platform names the driver that the virtual GPU emulates; empty: the first of the registry.
	Platform string
	// VGPUSocket is the virtual GPU's socket; empty: the driver's default name in Dir.
	VGPUSocket string

	// StateDir persists evidence about GPUs; empty: no persistence.
	StateDir string
	// SelfTest returns the program and environment for background GPU tests; nil disables the tests.
	SelfTest func() (path string, env []string, err error)

	// Private marks a daemon for one program and its children, which may choose the policy.
	Private bool
	// Limits are those of the users of a root daemon.
	Limits loop.Limits
	// MaxSessions and MaxSessionsPerUID limit the clients; 0: 4096 and 1024.
	MaxSessions, MaxSessionsPerUID int

	// Budget limits the CPU time that the daemon spends for each account; nil: no limits.
	Budget *budget.Budget
	// Health gets the parts of the daemon; nil: only the daemon itself reads them.
	Health *health.Monitor

	// GPUs are the settings of GPUs that differ from the ones above.
	GPUs map[model.DeviceID]engine.Setting
	// Rules give hints to programs.
	Rules config.Rules
	// LogLevel is set by SetLogLevel, unless that is nil.
	LogLevel    slog.Level
	SetLogLevel func(slog.Level)
	// ConfigFile is the configuration file; empty: none. Config describes the values that follow from it,
	// from flags and defaults. Load reads it again and returns new options and warnings; of these only what
	// can change while the daemon runs is used.
	ConfigFile string
	Config     control.ConfigReply
	Load       func() (Options, []string, error)
	// KeepFile keeps what operators set at run time for the next start; empty: nothing survives.
	KeepFile string

	// HostMemory is what programs may pin, together, for moves of their memory; 0: nothing moves.
	HostMemory model.Bytes

	// Examine returns what limits the drivers of this host; nil: nothing is known. A device node may block
	// it.
	Examine func() []driver.Check

	// Sensors returns the program that reads the values of GPUs, and its environment; nil: nothing reads them.
	Sensors func() (path string, env []string, err error)

	// Alerts has the receivers of alerts; the daemon adds the rest.
	Alerts alert.Options

	// Version is reported by Control.Version.
	Version string
	Log     *slog.Logger

	// Record is the file for a recording of all engine events and decisions; empty: none.
	Record string

	// Audit is the file for changes and faults, at most journal.Files files of journal.FileBytes; empty:
	// they are kept in memory only.
	Audit string
	// AuditOptional: the daemon starts even if it can't write Audit.
	AuditOptional bool

	// GuardianCgroup is the folder of a cgroup for the guardian that the daemon starts; empty: the
	// daemon's own.
	GuardianCgroup string
	// GuardianCommand starts the guardian; empty: this executable with "guardian". The command
	// gets its socket as file descriptor 3 and must call guardian.Main(3). Supervisors
	// use the same command, with extra arguments as labels.
	GuardianCommand []string
}

// Default limits of clients.
const (
	MaxSessions        = session.MaxSessions
	MaxSessionsPerUser = session.MaxSessionsPerUID
)
