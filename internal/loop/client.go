// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"time"

	"xsched/internal/driver"
	"xsched/internal/driver/gate"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// Identity identifies a client process. It does not change during a session.
type Identity struct {
	ID        model.SessionID
	PID       int // in the daemon's PID namespace
	ClientPID int // as the client reports it
	UID       int
	Command   string
	Attached  bool // without a shim
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
	Page     *wire.Page    // Remove releases it
	Lease    *driver.Lease // the workers use it, too
	Doorbell int           // eventfd; -1 if attached. Remove closes it

	Hint    model.Hint     // initial
	Granted model.Priority // granted by an authorised caller; see Client.granted
	Policy  string         // requested from a private daemon; empty: none
}

// Client is the loop's state of a session.
type Client struct {
	Identity
	session Session
	page    *wire.Page
	lease   *driver.Lease
	started time.Time

	// Only the loop uses the fields below, from Join on.

	bell    int // doorbell eventfd; -1 if attached or removed
	account *account
	hint    model.Hint
	// granted is the highest priority that an authorised caller has granted; below 0: none.
	granted      model.Priority
	priorityNote string // why the requested priority was not granted
	policy       string // requested in HELLO
	streams      int    // queues that are one stream each
	requests     requests
	hinted       int  // queues whose hint was updated since the last heartbeat
	stale        bool // further updates wait for the next heartbeat
	held         bool
	queues       map[uint32]*queue
	caps         map[model.DeviceID]driver.Capability
	sent         map[model.DeviceID]model.Desired // last state requested from each worker
	recoveries   uint64
	adds         int                       // queues added since the last heartbeat
	onGPU        map[model.DeviceID]int    // number of queues
	hooked       map[model.DeviceID]bool   // the client has announced a queue there
	bare         map[model.DeviceID]*queue // see bare.go
	changed      []model.DeviceID          // devices whose worker is not yet updated
}

// NewClient creates the state of a session that is about to join. It enforces the priority limit
// of the client's user, except for attached clients, whose caller was authorised.
func (l *Loop) NewClient(o ClientOptions) *Client {
	c := &Client{
		Identity: o.Identity, session: o.Session, page: o.Page, lease: o.Lease, started: time.Now(),
		bell: o.Doorbell, hint: o.Hint, granted: o.Granted, policy: o.Policy,
		queues: map[uint32]*queue{}, sent: map[model.DeviceID]model.Desired{}, onGPU: map[model.DeviceID]int{},
	}
	if !c.Attached {
		l.grant(c, &c.hint)
	}
	return c
}

// queue is the loop's state of a page slot in use.
type queue struct {
	id          model.QueueID
	device      model.DeviceID
	generation  uint64
	stream      bool             // a single stream, not a whole context
	offset      int32            // priority of the stream, added to the process's
	said        model.HintChange // hint of the program about this queue alone
	set         model.HintChange // newer hint of a control client
	granted     model.Priority   // with set; as Client.granted
	transitions uint64
	began       uint64 // last transition as the client dated it; see seenAt
	submitted   uint64
	busy        bool
	level       model.Level
	want        model.Desired
	gate        *gate.Target // nil: the queue's work is estimated
	guess       guess        // used if gate is nil

	preemptions uint64
	suspendedAt model.Time // 0: not suspended with work
	suspendedNS time.Duration
	stoppedBy   map[int]uint64 // preemptions by cause: a PID, ByHand or ByOthers
	use         queueUse

	quiet    bool          // the client does not ring; see quiet.go
	worked   time.Duration // while quiet: the part of the client's total already accounted
	workedAt model.Time    // time of that reading
	owed     time.Duration // busy time not yet accounted when quiet ended; negative if over-counted
}
