// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"slices"
	"time"

	"xsched/internal/driver"
	"xsched/internal/driver/gate"
	"xsched/internal/identity"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/terms"
	"xsched/internal/wire"
)

// Identity identifies a client process. It does not change during a session.
type Identity struct {
	ID        model.SessionID
	PID       int // in the daemon's PID namespace
	ClientPID int // as the client reports it
	// PIDNamespace and LocalPID are those of the process itself; namespace 0: the daemon's own.
	PIDNamespace uint64
	LocalPID     int
	User         identity.User
	Command      string
	Program      *identity.Program // nil: unknown
	Attached     bool              // without a shim
}

// Session is what the loop needs from a client's session. Its methods do not block on the device.
type Session interface {
	// Ended reports whether the session has ended or is about to.
	Ended() bool
	// Worker returns the worker of a device and starts it on first use; nil after the end.
	Worker(gpu model.DeviceID) *driver.Worker
	// Workers returns a copy of the workers started so far.
	Workers() map[model.DeviceID]*driver.Worker
	// Hardware returns the drivers' side of the session.
	Hardware() driver.Session
}

// ClientOptions describes a new client.
type ClientOptions struct {
	Identity
	Session  Session
	Page     *wire.Page     // Remove releases it
	Leases   *driver.Leases // the workers use them, too
	Doorbell int            // eventfd; -1 if attached. Remove closes it

	Nice    int              // of the process
	Said    model.HintChange // hints of the program
	Granted model.Priority   // granted by an authorised caller; up to 0: none
	Policy  string           // requested from a private daemon; empty: none
	Held    bool             // suspended by hand
	Terms   Terms
	Kept    Kept // of the same process under a previous daemon
}

// Client is the loop's state of a session.
type Client struct {
	Identity
	session Session
	page    *wire.Page
	leases  *driver.Leases
	inbox   *inbox // of its user, until Remove
	started time.Time

	// Only the loop uses the fields below, from Join on.

	bell    int // doorbell eventfd; -1 if attached or removed
	account *account
	policy  string // requested in HELLO
	hints   terms.Process
	updates hintUpdates
	hold    hold

	queues       map[uint32]*queue
	counts       deviceCounts
	caps         map[model.DeviceID]driver.Capability
	merge        clientMerge
	hooks        clientHooks
	workers      clientWorkers
	uncontrolled map[model.DeviceID]bool // GPUs where no mechanism controls it
	recoveries   uint64

	requests meter.Requests
	use      meter.ProgramUse
	copy     clientSnapshot
}

// deviceCounts are numbers of queues.
type deviceCounts struct {
	queues    map[model.DeviceID]int // with a place of their own
	separate  map[model.DeviceID]int // for which a control client has set a hint
	competing map[model.DeviceID]int // in the engine
}

// groups are those of the process.
func (c *Client) groups() []int {
	if c.Program == nil {
		return nil
	}
	return c.Program.Groups
}

// queue is the loop's state of a page slot in use.
type queue struct {
	owner      *Client
	id         model.QueueID
	device     model.DeviceID
	generation uint64
	hints      terms.Queue
	seen       reading
	busy       bool
	yields     bool   // it has work, and the hardware prefers the longer timeslices of others
	unproved   string // why it does not compete, empty: it does; see admission.go
	unlisted   bool   // competes on a device that no driver lists
	level      model.Level
	want       model.Desired
	gate       *gate.Target // nil: the queue's work is estimated
	late       bool         // in dispatcher.lateGates
	estimate   meter.Guess  // used if gate is nil
	merge      queueMerge
	polled     bool // the client does not ring; see poll.go

	stops  meter.Stops
	use    meter.QueueUse
	period meter.Period

	copies  model.Copies // see copies.go
	reports [reportUsers]uint32
}

// reading is what was last read from a queue's slot.
type reading struct {
	transitions uint64
	changed     uint64 // last transition as the client dated it; see seenAt
	submitted   uint64
	bursts      uint64 // batches released to the device
	waits       uint64 // of the program
}

// heldBy returns why a process is suspended whatever the policy says: any of its clients is. 0: it is not.
func (r *registry) heldBy(pid int) int {
	by := 0
	for _, c := range r.byPID[pid] {
		switch {
		case c.hold.byHand:
			return ByHand
		case c.hold.byGroup:
			by = ByGroup
		}
	}
	return by
}

// on charges requests to the client's user. A program of the administrator pays, too: only requests
// through the control interface come first.
func (c *Client) on(ctx context.Context) context.Context {
	return context.WithValue(ctx, clientKey{}, c.User)
}

// registry finds clients and their queues.
type registry struct {
	clients map[model.SessionID]*Client
	byPID   map[int][]*Client
	bells   map[int32]*Client
}

// queue returns a queue; nil: it has left.
func (r *registry) queue(id model.QueueID) *queue {
	if c := r.clients[id.Session]; c != nil {
		return c.queues[id.Index]
	}
	return nil
}

// programOf returns the command line of a client, for the recording.
func (r *registry) programOf(id model.SessionID) string {
	if c := r.clients[id]; c != nil {
		return c.Command
	}
	return ""
}

// markChanged schedules an update of a device's worker: one, however many queues change.
func (c *Client) markChanged(gpu model.DeviceID) {
	if !slices.Contains(c.workers.changed, gpu) {
		c.workers.changed = append(c.workers.changed, gpu)
	}
}
