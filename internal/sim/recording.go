// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/record"
)

// Recording is an analyzed recording: whether this engine reproduces the recorded decisions, and
// the demand of each queue.
type Recording struct {
	Header    record.Header
	From, To  model.Time
	Gaps      int
	Lost      uint64 // events known to be missing
	Truncated bool

	// Decisions counts recorded decisions, Checked those before the first gap, Same those that the
	// engine reproduced exactly. FirstOther describes the first difference.
	Decisions, Checked, Same int
	FirstOther               string

	Policy string // active for the longest time
	Mode   model.Mode
	Level  model.Level
	Config engine.Config
	// Devices are the last settings of devices with a policy or mode of their own.
	Devices map[model.DeviceID]engine.Setting

	queues  map[model.QueueID]*usage
	ordered []*usage
	names   map[model.SessionID]string
}

// period is a busy period of a queue.
type period struct {
	from, to model.Time
	service  time.Duration // estimated GPU time
	alone    bool          // no other queue was active on the device
	open     bool          // still busy at the end of the recording
}

// usage is one queue of a recording.
type usage struct {
	queue        model.Queue // with the newest hint and level
	name         string
	from, to     model.Time
	gone         bool
	periods      []period
	gpu          *share
	busy         bool
	alone        bool
	started      model.Time
	service      time.Duration
	suspended    bool
	slice        time.Duration
	switchedInto bool // its start preempted another queue
}

// share estimates how the active queues of a device shared it.
type share struct {
	at     model.Time
	active []*usage // busy and not suspended
	slice  time.Duration
	cost   time.Duration
}

// Bounds of one replay: 40 and 600 bytes each.
const (
	maxPeriods = 20_000_000
	maxUsages  = 1 << 20
)

// ReadRecording reads a recording, feeds its events to an engine and compares the decisions.
func ReadRecording(r *record.Reader) (*Recording, error) {
	c := &collector{
		Recording: Recording{Header: r.Header, queues: map[model.QueueID]*usage{}, names: map[model.SessionID]string{}, Config: r.Header.Config},
		shares:    map[model.DeviceID]*share{}, exact: true, inForce: map[setting]time.Duration{},
	}
	c.Header.Config.Strategies = strategies // a daemon of 1.x may have had them
	e, err := engine.New(c.Header.Config)
	if err != nil {
		return nil, fmt.Errorf("read recording: its configuration: %w", err)
	}
	c.engine = e
	c.costs = (&GPU{}).costs()
	c.From, c.To = r.Header.Base, r.Header.Base
	c.set, c.Devices = setting{e.Config().Policy, e.Config().Mode, e.Config().ForceLevel}, e.Config().Devices
	for {
		it, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read recording: %w", err)
		}
		if err := c.item(&it); err != nil {
			return nil, fmt.Errorf("read recording: %w", err)
		}
	}
	c.Truncated = r.Truncated
	c.finish()
	return &c.Recording, nil
}

type setting struct {
	policy string
	mode   model.Mode
	level  model.Level
}

// collector builds a Recording.
type collector struct {
	Recording
	engine   *engine.Engine
	exact    bool // no gap so far
	shares   map[model.DeviceID]*share
	costs    costsOf
	set      setting
	setSince model.Time
	inForce  map[setting]time.Duration
	periods  int
}

func (c *collector) item(it *record.Item) error {
	switch {
	case it.State != nil:
		return c.state(it.State)
	case it.Program != "":
		c.names[it.Event.ID.Session] = it.Program
	}
	return c.event(it.Event)
}

// state restarts the engine from a checkpoint. Queues keep their history.
func (c *collector) state(s *record.State) error {
	if s.Gap {
		c.Gaps++
		c.Lost += s.Lost
		c.exact = false
	}
	cfg := c.Header.Config
	cfg.Devices = nil // the checkpoint names those that are set now
	e, err := engine.New(cfg)
	if err != nil {
		return err
	}
	c.engine = e
	known := map[model.QueueID]bool{}
	for _, it := range s.Items {
		if it.Event.Kind == engine.EventAdd {
			known[it.Event.ID] = true
		}
	}
	for id, u := range c.queues {
		if !known[id] {
			c.remove(s.At, u)
		}
	}
	for i := range s.Items {
		if err := c.item(&s.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) event(ev *engine.Event) error {
	c.To = max(c.To, ev.At)
	changes, wake, err := c.engine.Do(ev)
	if err != nil {
		return err
	}
	switch ev.Kind {
	case engine.EventDecide:
		c.compare(ev, changes, wake)
		for i := range ev.Changes {
			c.desired(ev.At, &ev.Changes[i])
		}
	case engine.EventAdd:
		if len(c.ordered) >= maxUsages {
			return fmt.Errorf("more than %d queues: too long for one replay", maxUsages)
		}
		c.add(ev)
	case engine.EventRemove:
		if u := c.queues[ev.ID]; u != nil {
			c.remove(ev.At, u)
		}
	case engine.EventBusy:
		if u := c.queues[ev.ID]; u != nil {
			return c.setBusy(ev.At, u, ev.On)
		}
	case engine.EventHint:
		for _, u := range c.queues {
			if u.queue.PID == ev.PID {
				u.queue.Hint = *ev.Hint
			}
		}
	case engine.EventQueueHint:
		if u := c.queues[ev.ID]; u != nil {
			u.queue.Hint = *ev.Hint
		}
	case engine.EventLevel:
		if u := c.queues[ev.ID]; u != nil {
			u.queue.Level, u.queue.Slices = ev.Level, ev.On
		}
	case engine.EventPolicy, engine.EventMode:
		cfg := c.engine.Config()
		c.settle(ev.At)
		c.Devices = cfg.Devices
		c.set = setting{cfg.Policy, cfg.Mode, cfg.ForceLevel}
	case engine.EventHeld, engine.EventQuantum, engine.EventBounds, engine.EventUnmanaged, engine.EventMark:
	}
	return nil
}

// settle adds up how long each policy and mode was active.
func (c *collector) settle(now model.Time) {
	if c.setSince == 0 {
		c.setSince = c.From
	}
	c.inForce[c.set] += max(0, now.Sub(c.setSince))
	c.setSince = max(now, c.setSince)
}

// compare compares a recorded decision with the engine's.
func (c *collector) compare(ev *engine.Event, changes []model.Desired, wake model.Time) {
	c.Decisions++
	if !c.exact {
		return
	}
	c.Checked++
	if slices.Equal(changes, ev.Changes) && wake == ev.Wake {
		c.Same++
		return
	}
	if c.FirstOther == "" {
		c.FirstOther = fmt.Sprintf("decision %d, %v into the recording: recorded %v (wake %d), now %v (wake %d)", c.Decisions, ev.At.Sub(c.From),
			ev.Changes, ev.Wake, changes, wake)
	}
}

func (c *collector) add(ev *engine.Event) {
	q := *ev.Queue
	u := c.queues[q.ID]
	if u == nil {
		u = &usage{from: ev.At, to: model.Never}
		c.queues[q.ID] = u
		c.ordered = append(c.ordered, u)
	} else if u.busy && !q.Busy {
		_ = c.setBusy(ev.At, u, false)
	}
	gpu := c.shares[q.Device]
	if gpu == nil {
		gpu = &share{at: ev.At, slice: c.costs.ComputeSlice, cost: c.costs.MidSwitch}
		c.shares[q.Device] = gpu
	}
	u.queue, u.gpu = q, gpu
	if q.Busy && !u.busy {
		_ = c.setBusy(ev.At, u, true)
	}
}

func (c *collector) remove(now model.Time, u *usage) {
	if u.busy {
		_ = c.setBusy(now, u, false)
	}
	u.to, u.gone = now, true
	delete(c.queues, u.queue.ID)
}

func (c *collector) setBusy(now model.Time, u *usage, busy bool) error {
	if u.busy == busy {
		return nil
	}
	u.gpu.advance(now)
	if busy {
		u.started, u.service = now, 0
		u.alone = len(u.gpu.active) == 0
		u.switchedInto = !u.alone
		for _, other := range u.gpu.active {
			other.alone = false
		}
	} else {
		if c.periods++; c.periods > maxPeriods {
			return fmt.Errorf("more than %d busy periods: too long for one replay", maxPeriods)
		}
		u.periods = append(u.periods, u.period(now, u.gpu.cost))
	}
	u.busy = busy
	u.gpu.put(u)
	return nil
}

// period returns the busy period that ends now.
func (u *usage) period(now model.Time, cost time.Duration) period {
	p := period{from: u.started, to: now, service: u.service, alone: u.alone}
	if u.switchedInto {
		p.service = max(p.service-cost, p.service/4)
	}
	return p
}

func (c *collector) desired(now model.Time, d *model.Desired) {
	u := c.queues[d.Queue]
	if u == nil {
		return
	}
	u.gpu.advance(now)
	u.suspended, u.slice = d.Suspend != 0, d.Slice
	u.gpu.put(u)
}

// advance divides the time since the last change among the active queues, in proportion to their
// timeslices, less the cost of context switches.
func (s *share) advance(now model.Time) {
	d := now.Sub(s.at)
	if d <= 0 {
		return
	}
	s.at = now
	switch len(s.active) {
	case 0:
		return
	case 1:
		s.active[0].service += d
		return
	}
	var round time.Duration
	for _, u := range s.active {
		round += s.sliceOf(u) + s.cost
	}
	for _, u := range s.active {
		u.service += time.Duration(float64(d) * float64(s.sliceOf(u)) / float64(round))
	}
}

func (s *share) sliceOf(u *usage) time.Duration {
	if u.slice == 0 {
		return s.slice
	}
	return u.slice
}

// put adds u to the active queues or removes it.
func (s *share) put(u *usage) {
	at := slices.Index(s.active, u)
	switch want := u.busy && !u.suspended; {
	case want && at < 0:
		s.active = append(s.active, u)
	case !want && at >= 0:
		s.active = slices.Delete(s.active, at, at+1)
	}
}

// finish closes open periods and names the queues.
func (c *collector) finish() {
	c.settle(c.To)
	var longest time.Duration = -1
	for set, d := range c.inForce {
		if d > longest || d == longest && set.policy < c.Policy {
			longest = d
			c.Policy, c.Mode, c.Level = set.policy, set.mode, set.level
		}
	}
	for _, u := range c.ordered {
		if u.busy {
			u.gpu.advance(c.To)
			p := u.period(c.To, u.gpu.cost)
			p.open = true
			u.periods = append(u.periods, p)
		}
		if name := c.names[u.queue.ID.Session]; name != "" {
			u.name = fmt.Sprintf("%s (%d)", name, u.queue.PID)
		} else {
			u.name = fmt.Sprintf("pid %d", u.queue.PID)
		}
		if u.queue.ID.Index > 0 {
			u.name += fmt.Sprintf(" queue %d", u.queue.ID.Index)
		}
	}
	slices.SortStableFunc(c.ordered, func(a, b *usage) int {
		return cmp.Or(cmp.Compare(b.queue.Hint.Priority, a.queue.Hint.Priority), cmp.Compare(a.queue.ID.Session, b.queue.ID.Session),
			cmp.Compare(a.queue.ID.Index, b.queue.ID.Index))
	})
}
