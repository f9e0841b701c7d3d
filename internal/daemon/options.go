// SPDX-License-Identifier: Apache-2.0

// Package daemon assembles `xsched serve` from sessions, loop, engine, drivers and guardian, and
// implements control.Control.
package daemon

import (
	"log/slog"
	"time"

	"xsched/internal/loop"
	"xsched/internal/model"
)

// OtherUsers stands for all users without an entry in Options.MaxPriority.
const OtherUsers = loop.OtherUsers

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
	// MaxPriority limits the rank of the users of a root daemon, by uid; see loop.Config.
	MaxPriority map[int]model.Priority
	// MaxSessions and MaxSessionsPerUID limit the clients; 0: 4096 and 1024.
	MaxSessions, MaxSessionsPerUID int

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
