// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/policy"
	"xsched/internal/wire"
)

// ErrUnknownPID reports a process without a session.
var ErrUnknownPID = errors.New("no such client")

// QueueView is a snapshot of a queue.
type QueueView struct {
	Index       uint32
	Generation  uint64
	Stream      bool // a single stream, not a whole context
	Merged      int  // further queues of the process, beyond the user's limit, that are scheduled as one with it
	Competes    bool // it takes part in decisions; otherwise nothing confirms its device
	Hint        model.Hint
	Device      model.DeviceID
	Busy        bool
	Copies      bool // it has copies only
	Yields      bool // it has work, and the hardware prefers the longer timeslices of others
	Level       model.Level
	Reason      string
	Route       string // mechanism of preemption at that level
	Want        model.Desired
	OwnSliceUS  int64
	Preemptions uint64
	Suspended   time.Duration
	Yielded     uint64 // times that the hardware left it for the longer timeslices of others
	Yielding    time.Duration
	Submitted   uint64
	Bursts      uint64 // batches released to the device
	Transitions uint64
	Ran         time.Duration  // time with work, neither suspended nor yielding
	StoppedBy   map[int]uint64 // preemptions and yields by cause: a PID, ByHand, ByGroup or ByOthers
}

// ClientView is a snapshot of a client.
type ClientView struct {
	Identity
	Age          time.Duration
	Hint         model.Hint
	PriorityNote string
	// Ungranted are the GPUs that it uses although its pod was granted others.
	Ungranted []model.DeviceID
	Rule      string // that gave hints to the program; empty: none
	Held      bool
	Group     string // of pods on all nodes, "namespace/group"; empty: none
	GroupHeld bool
	// GroupPriority is the granted priority, which decides about a hold of the group.
	GroupPriority model.Priority
	Counters      wire.Counters
	Memory        []MemoryView
	Signs         wire.Signs // of life, of the library's threads
	// Marked requests, and those overwritten before the loop read them.
	Marked, MarksLost uint64
	Queues            []QueueView
	Refused           int    // further queues, beyond the user's limits, that are not scheduled
	Caught            uint64 // hardware queues created while the client was suspended
	Caps              map[model.DeviceID]driver.Capability
	// Protections is what protection gains the process and costs others, by device.
	Protections []policy.ProtectionStatus
	// Shares of the GPUs that it used in the last second.
	Shares []GPUShare
	// Totals are its use of each GPU since it joined.
	Totals []GPUTotal
	// Open is for how long the request in progress lasts, at least; 0: none is known.
	Open time.Duration

	figures *meter.Figures
}

// Latency returns the requests of the client so far, nil if there are none. The figures are current:
// younger than the rest of the view.
func (v *ClientView) Latency() *LatencyView { return v.figures.Latency(v.Hint.SLO.Latency) }

// Counts returns the numbers of requests of the client so far.
func (v *ClientView) Counts() Counts { return v.figures.Counts() }

// view formats the state of a client, or of its copy in a snapshot.
func (c *Client) view(now model.Time, cfg *engine.Config) ClientView {
	v := ClientView{
		Identity: c.Identity,
		Age:      time.Since(c.started), Hint: c.hints.Hint, PriorityNote: c.hints.Note, Rule: c.hints.Terms.Rule, Held: c.hold.byHand,
		Group: c.hints.Terms.Grant.Group, GroupHeld: c.hold.byGroup, GroupPriority: c.hints.Terms.Grant.Priority(),
		Caps: maps.Clone(c.caps), Marked: c.requests.Read, MarksLost: c.requests.Lost, Open: c.requests.Open(now), Refused: c.merge.refused, Shares: c.use.Shares,
		Caught: c.session.Hardware().Caught(), figures: c.requests.Figures(),
	}
	if v.Ungranted = c.ungranted(); len(v.Ungranted) > 0 {
		v.PriorityNote = fmt.Sprintf("the pod was granted other GPUs than %v: best effort there", v.Ungranted[0])
	}
	for _, q := range c.queues {
		if q.merge.primary != nil {
			continue // in the entry of its primary queue
		}
		level, reason := c.inForce(cfg, q)
		qv := QueueView{
			Index: q.id.Index, Generation: q.generation, Stream: q.hints.Stream, Hint: c.hints.Effective(&q.hints), Device: q.device, Busy: q.busy, Competes: q.unproved == "", Copies: q.copies.Only, Yields: q.yields, Level: level, Reason: reason, Want: q.want,
			Preemptions: q.stops.Preemptions, Yielded: q.stops.Yielded, Submitted: q.seen.submitted, Bursts: q.seen.bursts, Transitions: q.seen.transitions,
		}
		if qv.Merged, qv.Submitted = q.merge.count, q.seen.submitted+q.merge.submitted; q.merge.count > 0 && reason == "" {
			qv.Reason = fmt.Sprintf("the user has too many queues: %d more of the program are scheduled as one with this", qv.Merged)
		}
		qv.Route = c.route(q, level)
		qv.Suspended, qv.Yielding = q.stops.Times(now)
		qv.Ran, qv.StoppedBy = q.use.UpTo(now), q.stops.Causes()
		qv.OwnSliceUS = c.session.Hardware().OwnSlice(q.device)
		v.Queues = append(v.Queues, qv)
	}
	slices.SortFunc(v.Queues, func(a, b QueueView) int { return int(a.Index) - int(b.Index) })
	return v
}

// ErrUnknownQueue reports a queue that the process does not have.
var ErrUnknownQueue = errors.New("no such queue")
