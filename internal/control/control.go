// SPDX-License-Identifier: Apache-2.0

// Package control defines the daemon's control interface: requests, replies,
// errors, and the directory in which the daemon and its clients meet. The HTTP server
// (package api), the client (package client) and the daemon share it.
package control

import (
	"context"
	"errors"
	"fmt"

	"xsched/internal/identity"
)

// Error classes; test with errors.Is. Every error of a Control is an *Error.
var (
	ErrNotFound     = errors.New("not found")
	ErrNotAllowed   = errors.New("not allowed")
	ErrNotSupported = errors.New("not supported")
	ErrInvalid      = errors.New("invalid")
	ErrUnavailable  = errors.New("unavailable") // the engine does not respond, or the daemon is stopping
)

// Error is a refused request.
type Error struct {
	Kind   error  // one of the classes above
	Cause  string // "priority 300 is out of range"
	Remedy string // "use -256 to 255"; may be empty
}

func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Cause
	}
	return e.Cause + "; " + e.Remedy
}

func (e *Error) Unwrap() error { return e.Kind }

// Errorf returns an Error of a class; remedy may be empty.
func Errorf(kind error, remedy, format string, args ...any) *Error {
	return &Error{Kind: kind, Cause: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Caller identifies the client by the kernel's data about its connection.
type Caller struct {
	User identity.User
	PID  int // in the daemon's PID namespace; 0: unknown
	// PIDNamespace is the one in which the caller names processes; 0: the daemon's own.
	PIDNamespace uint64
	Admin        bool  // root of a container
	Groups       []int // of the caller's process
}

// Self stands for the caller in requests: its own process, or the nearest parent that is managed.
const Self = -1

// CallerOf returns the caller of a connection's peer.
func CallerOf(p identity.Peer) Caller {
	return Caller{User: p.User, PID: p.PID, PIDNamespace: p.PIDNamespace, Admin: p.Admin, Groups: p.Groups}
}

// Owns reports whether the caller may control the processes of a user.
func (c Caller) Owns(user identity.User) bool {
	return identity.Peer{User: c.User, Admin: c.Admin}.Owns(user)
}

// Nobody is a caller without rights.
var Nobody = Caller{User: identity.Nobody}

// Control is the daemon's control interface. Methods are safe for concurrent use and check the
// caller's permissions. Users on the host may read all but command lines, callers in a container only
// what is theirs. Changing a process requires its user or root; changing the policy or the mode
// requires the daemon's user or root.
type Control interface {
	Version(ctx context.Context, c Caller) (Version, error)
	List(ctx context.Context, c Caller) (List, error)
	Devices(ctx context.Context, c Caller) (Devices, error)
	Stats(ctx context.Context, c Caller) (Stats, error)
	// Parts returns the state of every part of the daemon. It waits for none of them, costs little and
	// reveals nothing else, so it needs no caller.
	Parts() []Part

	// History and Journal tell what happened: who used each GPU, and who preempted or changed what.
	History(ctx context.Context, c Caller, r HistoryRequest) (History, error)
	Journal(ctx context.Context, c Caller, r JournalRequest) (Journal, error)
	// Report tells who used how much of the GPUs. Users read their own rows, the daemon's user and root all.
	Report(ctx context.Context, c Caller, r ReportRequest) (Report, error)

	// Hint changes the hints that the request sets and returns all effective hints.
	Hint(ctx context.Context, c Caller, r HintRequest) (HintReply, error)
	// Policy with an empty name only reads.
	Policy(ctx context.Context, c Caller, r PolicyRequest) (PolicyReply, error)
	// Mode with an empty mode only reads.
	Mode(ctx context.Context, c Caller, r ModeRequest) (ModeReply, error)

	// Suspend and Resume override the policy. Suspend attaches to a process without a shim.
	Suspend(ctx context.Context, c Caller, r ProcessRequest) (ProcessReply, error)
	Resume(ctx context.Context, c Caller, r ProcessRequest) (ProcessReply, error)
	Attach(ctx context.Context, c Caller, r ProcessRequest) (ProcessReply, error)
	Detach(ctx context.Context, c Caller, r ProcessRequest) (ProcessReply, error)

	// Evict moves memory of a process to host memory until Restore. Both return when the order is given.
	Evict(ctx context.Context, c Caller, r EvictRequest) (MemoryReply, error)
	Restore(ctx context.Context, c Caller, r ProcessRequest) (MemoryReply, error)

	// Queues lists a process's hardware queues. Only its user and root may see them.
	Queues(ctx context.Context, c Caller, r ProcessRequest) (HardwareQueues, error)

	// Config returns the configuration in force and its sources. Reload reads the file again; an error
	// changes nothing. Both require the daemon's user or root.
	Config(ctx context.Context, c Caller) (ConfigReply, error)
	Reload(ctx context.Context, c Caller, r ReloadRequest) (ReloadReply, error)

	// Grants replaces the grants of a source; with an empty source it only reads. It requires the daemon's
	// user or root.
	Grants(ctx context.Context, c Caller, r GrantsRequest) (GrantsReply, error)

	// Holds replaces the holds of a source; with an empty source it only reads. It requires the daemon's
	// user or root. Holds end by themselves, and a restart ends all of them.
	Holds(ctx context.Context, c Caller, r HoldsRequest) (HoldsReply, error)

	// AlertTest sends a test alert and waits for its receivers. It requires the daemon's user or root.
	AlertTest(ctx context.Context, c Caller, r AlertTest) (AlertTest, error)

	// Wedge blocks the engine loop: fault injection, only with a virtual GPU.
	Wedge(ctx context.Context, c Caller, r WedgeRequest) (WedgeReply, error)
}
