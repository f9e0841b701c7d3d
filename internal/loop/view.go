// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"xsched/internal/clock"
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
	// Open is for how long the request in progress lasts, at least; 0: none is known.
	Open time.Duration

	figures *meter.Figures
}

// Latency returns the requests of the client so far, nil if there are none. The figures are current:
// younger than the rest of the view.
func (v *ClientView) Latency() *LatencyView { return v.figures.Latency(v.Hint.SLO.Latency) }

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

// inForce returns the level of a queue, and the reason if it is not the highest or not the requested
// one. It is computed anew: the mode may override the hint, and the reason may have changed.
func (c *Client) inForce(cfg *engine.Config, q *queue) (model.Level, string) {
	want := c.hints.Hint.Level
	if cfg := cfg.On(q.device); cfg.Mode == model.ModeLevel {
		want = cfg.ForceLevel
	}
	level, reason := c.queueCapability(q).Resolve(want)
	switch {
	case c.workers.off[q.device] != "":
	case q.unproved != "":
		reason = q.unproved
	case c.Attached && level == model.LevelBlock:
		reason = "the process has no shim that holds launches: level 1 has no effect"
	case q.guessed() && level == model.LevelBlock:
		reason = "the runtime is not hooked, so no gate holds launches: level 1 has no effect"
	}
	return level, reason
}

// route returns the mechanism that preempts a queue at a level.
func (c *Client) route(q *queue, level model.Level) string {
	if level <= model.LevelBlock {
		return "gate"
	}
	return c.caps[q.device].Route
}

// edit runs f on every client of a process, on the loop.
func (l *Loop) edit(ctx context.Context, pid int, f func(c *Client) error) error {
	found, failed := false, error(nil)
	err := l.call(ctx, func() {
		for _, c := range l.registry.byPID[pid] {
			found = true
			failed = errors.Join(failed, f(c))
			c.touch()
		}
	})
	switch {
	case err != nil:
		return err
	case !found:
		return ErrUnknownPID
	}
	return failed
}

// ErrUnknownQueue reports a queue that the process does not have.
var ErrUnknownQueue = errors.New("no such queue")

// Settle waits until what was decided after the last change of a process is in force: in its pages, and
// on its hardware queues.
func (l *Loop) Settle(ctx context.Context, pid int) error {
	if _, err := l.snapshot(ctx); err != nil { // taken behind a decision
		return err
	}
	var workers []*driver.Worker
	err := l.edit(ctx, pid, func(c *Client) error {
		workers = slices.AppendSeq(workers, maps.Values(c.session.Workers()))
		return nil
	})
	for _, w := range workers {
		if err == nil {
			err = w.Settle(ctx)
		}
	}
	return err
}

// Kept returns what control clients have set for a process.
func (l *Loop) Kept(ctx context.Context, pid int) (Kept, error) {
	var out Kept
	err := l.edit(ctx, pid, func(c *Client) error {
		out = c.hints.Kept()
		out.Held = c.hold.byHand
		return nil
	})
	return out, err
}

// Identities returns the clients that have joined.
func (l *Loop) Identities(ctx context.Context) ([]Identity, error) {
	var out []Identity
	err := l.call(ctx, func() {
		out = slices.Grow(out, len(l.registry.clients))
		for _, c := range l.registry.clients {
			out = append(out, c.Identity)
		}
	})
	return out, err
}

// Engine runs f with the engine on the loop, which then decides.
func (l *Loop) Engine(ctx context.Context, f func(e *engine.Engine)) error {
	return l.call(ctx, func() {
		l.poll.sample(clock.Now())
		f(l.engine.Engine)
		l.publishConfig()
		l.engine.dirty = true
	})
}

// Wedge blocks the loop, for fault injection.
func (l *Loop) Wedge(ctx context.Context, d time.Duration) error {
	return l.post(ctx, func() { time.Sleep(d) })
}

// Stats are the metrics of the loop.
type Stats struct {
	Scheduling                     string
	Queues                         int
	Wakes, Rings, Decisions        uint64
	BusyToDecision, Decision, Late *driver.Histogram
	Waits                          *driver.Histogram
	Snapshots                      uint64       // published to readers
	Folded, RefusedQueues          int          // queues beyond their user's limit, and beyond all limits
	Throttled                      uint64       // doorbells ignored until the next window
	Busy                           uint64       // requests refused because the user has too many
	Heartbeat                      model.Time   // the last one
	Engine                         engine.Stats // as of the last heartbeat
}

// Stats returns the metrics. It works while the loop is blocked.
func (l *Loop) Stats() Stats {
	st := Stats{
		Queues: int(l.merge.queueCount.Load()),
		Wakes:  l.stats.wakes.Load(), Rings: l.stats.rings.Load(), Decisions: l.stats.decisions.Load(),
		BusyToDecision: &l.stats.busyToDecision, Decision: &l.stats.decision, Late: &l.stats.late, Waits: &l.activity.waits,
		Heartbeat: model.Time(l.stats.beat.Load()), Snapshots: l.snapshots.Load(),
		Folded: int(l.merge.folded.Load()), RefusedQueues: int(l.merge.refusedQueues.Load()), Throttled: l.pace.throttles.Load(), Busy: l.refused.Load(),
	}
	if p := l.stats.scheduling.Load(); p != nil {
		st.Scheduling = *p
	}
	if counts := l.stats.counts.Load(); counts != nil {
		st.Engine = *counts
	}
	return st
}
