// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"encoding/json"
	"log/slog"
	"os/exec"

	"xsched/internal/model"
)

// AttachRequest names a process to take over. PIDFD stays the caller's.
type AttachRequest struct {
	PID, PIDFD, UID int
	Log             *slog.Logger
	Guardian        Guardian
}

// Attached is the session of a process without the shim.
type Attached interface {
	Session
	// Capabilities is what Resolve returned when the process was attached.
	Capabilities() map[model.DeviceID]Capability
	// Guard arms the guardian with the session's page. Nothing is done to the
	// process before. end stops the guarding; restored: the process runs natively.
	Guard(ctx context.Context, session uint64, page int) (end func(restored bool), err error)
	// RestoredByClose: Close itself resumes the process, whatever was done to it.
	RestoredByClose() bool
	// Poll looks at the process, every 50 ms or so. changed asks for another
	// Resolve; an error ends the session.
	Poll(ctx context.Context) (changed bool, err error)
}

// Refusal classifies an AttachError.
type Refusal int

// Classes of refusal.
const (
	RefusedUnavailable Refusal = iota // may work later
	RefusedNotUsed                    // the process does not use this driver, or not yet
	RefusedRights
	RefusedSupport
	RefusedGone // the process has ended
)

// AttachError says why a process can't be attached to and what to do.
type AttachError struct {
	Refusal Refusal
	Remedy  string // may be empty
	Err     error
}

func (e *AttachError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *AttachError) Unwrap() error { return e.Err }

// Guardian is the daemon's access to processes that outlive it and restore
// attached processes.
type Guardian interface {
	// Keep has the guardian hold a ward; Update replaces its state. The
	// descriptors stay the caller's.
	Keep(w Ward) error
	Update(session uint64, state json.RawMessage, fds []int) error
	// Drop ends the guarding. Unless restored, the guardian restores first.
	Drop(session uint64, restored bool)
	// Spawn starts a guardian process that serves one driver alone: on the first
	// message it calls Supervisor.Supervise. args are for process listings.
	Spawn(args ...string) (sock int, cmd *exec.Cmd, err error)
	// Guarding and Replaced keep the statistics of spawned processes.
	Guarding(delta int)
	Replaced()
}

// Ward is a process in the guardian's care.
type Ward struct {
	Driver      string
	Session     uint64
	PID         int
	Page, PIDFD int
	State       json.RawMessage // for Restorer.Restore
	FDs         []int
}

// Restorer is a driver whose attached processes can be restored by whoever
// holds the right descriptors.
type Restorer interface {
	Driver
	// Restoration rebuilds in the guardian what State describes, and owns fds.
	Restoration(p Place, pid int, state json.RawMessage, fds []int) (Restoration, error)
}

// Restoration restores one process.
type Restoration interface {
	// Restore resumes the process and resets its timeslices. It may be repeated.
	Restore(ctx context.Context) error
	// Gone: the process no longer has its GPU files, and only ours keep its memory.
	Gone() bool
	Close()
}

// Supervisor is a driver that needs a process of its own for each attached one.
type Supervisor interface {
	Driver
	// Supervise is that process's life: it serves sock until its end.
	Supervise(sock int, first json.RawMessage) error
}

// SupervisorStart is the first message to a spawned guardian process.
type SupervisorStart struct {
	Op     string          `json:"op"`
	Driver string          `json:"driver"`
	First  json.RawMessage `json:"first"`
}

// OpSupervise is the Op of SupervisorStart.
const OpSupervise = "supervise"

// SuperviseRequest makes a guardian process a driver's supervisor.
func SuperviseRequest(name string, first json.RawMessage) SupervisorStart {
	return SupervisorStart{Op: OpSupervise, Driver: name, First: first}
}
