// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os/exec"

	"xsched/internal/identity"
	"xsched/internal/model"
)

// AttachRequest names a process to take over. The caller keeps ownership of PIDFD.
type AttachRequest struct {
	PID, PIDFD int
	User       identity.User
	Log        *slog.Logger
	Guardian   Guardian
}

// Attached is the session of a process without the shim.
type Attached interface {
	Session
	// Capabilities returns the result of Resolve at attach time.
	Capabilities() map[model.DeviceID]Capability
	// Guard arms the guardian with the session's page; the session must not act on the process
	// before. Call end when guarding ends; restored reports that the process runs natively.
	Guard(ctx context.Context, session uint64, page int) (end func(restored bool), err error)
	// Free resumes every hardware queue and restores every timeslice, whatever this daemon believes
	// about them, and verifies the result as far as the driver reports it. The session has no other
	// operation in flight.
	Free(ctx context.Context) (Freed, error)
	// RestoredByClose reports whether Close alone undoes everything done to the process.
	RestoredByClose() bool
	// Poll checks the process about every 50 ms. changed asks for another Resolve; an error ends
	// the session.
	Poll(ctx context.Context) (changed bool, err error)
}

// Freed is what Free verified.
type Freed struct {
	Queues int // enabled: the driver accepted the request for each
	Slices int // restored: read back
}

func (f Freed) String() string {
	s := fmt.Sprintf("%d hardware queues enabled", f.Queues)
	if f.Slices > 0 {
		s += fmt.Sprintf(", %d timeslices restored", f.Slices)
	}
	return s
}

// Refusal classifies an AttachError.
type Refusal int

// Classes of refusal.
const (
	RefusedUnavailable Refusal = iota // may work later
	RefusedNotUsed                    // the process does not use this driver yet
	RefusedRights
	RefusedSupport
	RefusedGone // the process has ended
)

// AttachError explains why an attach failed and names a remedy.
type AttachError struct {
	Refusal Refusal
	Remedy  string // may be empty
	Err     error
}

func (e *AttachError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *AttachError) Unwrap() error { return e.Err }

// Guardian gives the daemon access to processes that outlive it and restore attached processes.
type Guardian interface {
	// Keep hands a ward to the guardian; Update replaces its state. The caller keeps its
	// descriptors.
	Keep(w Ward) error
	Update(session uint64, state json.RawMessage, fds []int) error
	// Drop ends the guarding. Unless restored, the guardian restores first.
	Drop(session uint64, restored bool)
	// Spawn starts a guardian process for one driver. On the first message that process calls
	// Supervisor.Supervise. args appear in process listings only.
	Spawn(args ...string) (sock int, cmd *exec.Cmd, err error)
	// Guarding and Replaced count spawned processes for statistics.
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

// Restorer is a driver whose attached processes the guardian can restore from duplicated
// descriptors.
type Restorer interface {
	Driver
	// Restoration rebuilds the state in the guardian and takes ownership of fds.
	Restoration(p Place, pid int, state json.RawMessage, fds []int) (Restoration, error)
	// Reopen is Restoration for a process whose daemon and guardian both died: it duplicates the
	// descriptors from the process. Nil without an error: the process has nothing to restore.
	Reopen(ctx context.Context, p Place, pid, pidfd int, state json.RawMessage) (Restoration, error)
}

// Restoration restores one process.
type Restoration interface {
	// Restore resumes the process and resets its timeslices. Callers may repeat it.
	Restore(ctx context.Context) error
	// Gone reports that the process closed its GPU files, so only our duplicates keep its memory
	// allocated.
	Gone() bool
	Close()
}

// Supervisor is a driver that needs a separate process per attached process.
type Supervisor interface {
	Driver
	// Supervise is the main function of that process: it serves sock until the peer closes it.
	Supervise(sock int, first json.RawMessage) error
}

// SupervisorStart is the first message to a spawned guardian process.
type SupervisorStart struct {
	Op     string          `json:"op"`
	Driver string          `json:"driver"`
	First  json.RawMessage `json:"first"`
}

// OpSupervise is SupervisorStart.Op.
const OpSupervise = "supervise"

// SuperviseRequest builds the message that turns a guardian process into a supervisor.
func SuperviseRequest(name string, first json.RawMessage) SupervisorStart {
	return SupervisorStart{Op: OpSupervise, Driver: name, First: first}
}
