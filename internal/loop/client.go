// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"slices"
	"time"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/policy"
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
	memory       clientMemory
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

// on charges requests to the client's user. A program of the administrator pays, too: only requests
// through the control interface come first.
func (c *Client) on(ctx context.Context) context.Context {
	return context.WithValue(ctx, clientKey{}, c.User)
}

// markChanged schedules an update of a device's worker: one, however many queues change.
func (c *Client) markChanged(gpu model.DeviceID) {
	if !slices.Contains(c.workers.changed, gpu) {
		c.workers.changed = append(c.workers.changed, gpu)
	}
}

// clientMerge is the merger's state of a client.
type clientMerge struct {
	primaries map[model.DeviceID]*queue
	waiting   bool // queues wait for the next heartbeat
	refused   int  // queues in the page beyond the user's limits
	adds      int  // queues added since the last heartbeat
}

// newPrimary chooses another primary queue on a GPU, after the last one has left.
func (c *Client) newPrimary(gpu model.DeviceID) {
	delete(c.merge.primaries, gpu)
	for _, q := range c.queues {
		if q.device == gpu && q.merge.primary == nil {
			c.merge.primaries[gpu] = q
			return
		}
	}
}

// hintUpdates is the hinter's state of a client.
type hintUpdates struct {
	admitted int  // queues whose hint was updated since the last heartbeat
	waiting  bool // further updates wait for the next heartbeat
	listed   bool // in hinter.waiting
}

// hintsPerTick limits the hint updates of one client per heartbeat, counted in queues. Further
// updates wait for the next heartbeat.
const hintsPerTick = 256

// admitHints reports whether the hints of so many queues may be updated now.
func (c *Client) admitHints(queues int) bool {
	if c.updates.admitted > 0 && c.updates.admitted+queues > hintsPerTick {
		c.updates.waiting = true
		return false
	}
	c.updates.admitted += queues
	return true
}

// hold is whether a client is suspended whatever the policy says.
type hold struct{ byHand, byGroup bool }

// stopped reports whether a client is suspended whatever the policy says.
func (c *Client) stopped() bool { return c.hold.byHand || c.hold.byGroup }

// clientWorkers is the dispatcher's state of a client.
type clientWorkers struct {
	sent    map[model.DeviceID]model.Desired // last state requested from each worker
	off     map[model.DeviceID]string        // why scheduling is off there
	changed []model.DeviceID                 // devices whose worker is not yet updated
}

// clientHooks says where a client announces its queues.
type clientHooks struct {
	seen    map[model.DeviceID]bool   // it has announced a queue there
	missing map[model.DeviceID]*queue // it has announced none; the work of this queue is estimated
}

// clientSnapshot is the publisher's state of a client.
type clientSnapshot struct {
	outdated bool        // the client has changed since the copy
	last     *clientCopy // nil: none yet
}

// touch marks a client as changed since the last snapshot.
func (c *Client) touch() { c.copy.outdated = true }

// places is the number of queues with a place of their own.
func (c *Client) places() (n int) {
	for _, k := range c.counts.queues {
		n += k
	}
	return n
}

// clientCopy is the state of a client. Consecutive snapshots share the copies of unchanged clients.
type clientCopy struct {
	Client
	copies []queue
	// protections is what protection gains it and costs others, by device.
	protections []policy.ProtectionStatus
	totals      []GPUTotal
	busy        bool // a queue has work, so its counters change without the loop's knowledge
}
