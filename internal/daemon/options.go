// SPDX-License-Identifier: Apache-2.0

// Package daemon assembles `xsched serve`: hub, engine, device backends and
// guardian, and the control interface that the HTTP server offers.
package daemon

import (
	"log/slog"
	"time"

	"xsched/internal/model"
)

// Options configure Start. The zero value is a user's daemon with defaults.
type Options struct {
	// Dir holds the sockets; empty: $XSCHED_DIR, /run/xsched for root, else the user's own.
	Dir string
	// Policy and Mode to start with; empty: the engine's defaults.
	Policy string
	Mode   model.Mode
	// ModeLevel is the forced level of ModeLevel.
	ModeLevel model.Level
	// Quantum and StarvationBound override the engine's defaults when not 0.
	Quantum, StarvationBound time.Duration

	// Virtual uses a virtual GPU in place of the kernel drivers.
	Virtual bool
	// Platform names the driver that the virtual GPU implements; empty: the first of the registry.
	Platform string
	// VGPUSocket is the device process's socket; empty: the driver's default name in Dir.
	VGPUSocket string

	// StateDir keeps what was learnt about GPUs; empty: nothing is kept.
	StateDir string
	// SelfTest returns the program with which GPUs are tested in the background, and its
	// environment; nil: the daemon does not test.
	SelfTest func() (path string, env []string, err error)

	// Private: the daemon is there for one program and its children, which may choose the policy.
	Private bool
	// AllowPriority lets non-root clients of a root daemon raise themselves above 0.
	AllowPriority bool
	// MaxSessions and MaxSessionsPerUID bound the clients; 0: 4096 and 1024.
	MaxSessions, MaxSessionsPerUID int

	// Version is the program's, for Control.Version.
	Version string
	Log     *slog.Logger

	// Record is the file into which everything goes that the engine is told and decides; empty: none.
	Record string

	// GuardianCommand starts the guardian; empty: this executable with "guardian".
	// The command gets its socket as file descriptor 3 and must call guardian.Main(3). A tracer is started
	// by the same command with arguments that only say so.
	GuardianCommand []string
}
