// SPDX-License-Identifier: Apache-2.0

// Package loop owns the engine's thread: it reads the pages of clients, runs the engine, brings
// decisions to gates and workers, and publishes snapshots. It must not know connections or devices: a
// session is an interface to it, and everybody else reaches it through requests.
package loop

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/budget"
	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/residency"
	"xsched/internal/terms"
	"xsched/internal/wire"
)

// Loop is the engine's goroutine, locked to an OS thread. It waits for doorbells, requests and
// timers; it never blocks on a device or a socket.
//
// One loop serves all devices. A process may use several devices, its page has one heartbeat, and the
// heartbeat must come from the thread that decides. Drivers may hang, so each process has one worker
// per device that isolates the loop from them.
//
// Loop decides the order of one pass. The parts below own the state and do the work.
type Loop struct {
	*terms.Book // limits of the users
	*thread
	*publisher

	cfg    Config
	engine *input
	stats  counters

	registry  *registry
	pace      *pacer
	activity  *activity
	dispatch  *dispatcher
	hints     *hinter
	holds     *holds
	unmanaged *unmanaged
	poll      *poller
	merge     *merger
	progress  *progress
	requests  *requestReader
	memory    *memory
	admission *admission
	pages     *pages
	estimates *estimator

	beating []*Client  // pages to update by this heartbeat
	due     model.Time // next wake-up of the engine
	tick    model.Time // next heartbeat
	armed   model.Time // current timer setting

	readings uint64 // of Kept
}

// Limits that bound the work of one pass.
const (
	tickPeriod = model.Time(wire.HeartbeatPeriodNS)
	maxGPUs    = 16 // of one client
)

// Config configures a loop.
type Config struct {
	Engine  *engine.Engine
	Log     *slog.Logger
	Metrics *driver.Metrics

	// UID is the daemon's. A daemon of root applies Limits to other users.
	UID    int
	Limits Limits

	Budget *budget.Budget // gets the time of users' requests and hints; nil: nobody asks

	// Private: the daemon serves one program and its children, which may choose the policy.
	Private bool

	Recorder record.Recorder // records the engine's inputs and decisions; may be nil

	Trace *record.Trace // gets what queues do, for the timeline; may be nil

	// HostMemory is what programs may pin for moves of their memory, together; 0: nothing moves by itself.
	HostMemory model.Bytes
	// Capacity returns the memory of a GPU; 0: unknown. It may block. Nil: all are unknown.
	Capacity func(gpu model.DeviceID) model.Bytes

	// Scan requests a scan for unmanaged programs, without blocking. The answer comes by
	// SetUnmanaged. Nil: nobody scans, and no GPU counts as shared.
	Scan func()
}

// New starts a loop.
func New(cfg Config) (*Loop, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = &driver.Metrics{}
	}
	t, err := newThread(cfg.UID)
	if err != nil {
		return nil, fmt.Errorf("start engine loop: %w", err)
	}
	l := assemble(cfg, t)
	l.publishConfig()
	go l.run()
	return l, nil
}

// assemble connects the parts. A part knows only those that were made before it.
func assemble(cfg Config, t *thread) *Loop {
	in := &input{Engine: cfg.Engine}
	r := &registry{clients: map[model.SessionID]*Client{}, byPID: map[int][]*Client{}, bells: map[int32]*Client{}}
	l := &Loop{Book: terms.NewBook(cfg.UID, cfg.Limits), thread: t, cfg: cfg, engine: in, registry: r, due: model.Never}
	l.pace = &pacer{epoll: t.epoll, bills: bills{budget: cfg.Budget}}
	l.activity = &activity{engine: in, registry: r, trace: cfg.Trace, usage: meter.NewUsage()}
	l.dispatch = &dispatcher{engine: in, registry: r, activity: l.activity, resumed: map[model.DeviceID][]<-chan struct{}{}}
	l.estimates = &estimator{engine: in, activity: l.activity, dispatch: l.dispatch}
	l.holds = &holds{engine: in, registry: r, dispatch: l.dispatch}
	l.unmanaged = &unmanaged{engine: in, registry: r, scan: cfg.Scan}
	l.poll = &poller{engine: in, registry: r, activity: l.activity, dispatch: l.dispatch, queues: map[model.DeviceID]*queue{}}
	l.publisher = &publisher{engine: in, registry: r, thread: t, poll: l.poll, usage: l.activity.usage}
	l.hints = &hinter{engine: in, log: cfg.Log, registry: r, pace: l.pace, publisher: l.publisher, private: cfg.Private}
	l.merge = &merger{activity: l.activity, dispatch: l.dispatch, uid: cfg.UID}
	l.progress = &progress{engine: in, registry: r, activity: l.activity}
	l.requests = &requestReader{engine: in, pace: l.pace}
	l.admission = &admission{engine: in, registry: r, activity: l.activity, dispatch: l.dispatch, unmanaged: l.unmanaged, poll: l.poll}
	l.memory = &memory{
		registry: r, admission: l.admission, thread: t, capacity: cfg.Capacity, host: residency.Host{Budget: cfg.HostMemory}, devices: map[model.DeviceID]*memoryDevice{},
	}
	l.publisher.memory = l.memory
	l.pages = &pages{
		engine: in, metrics: cfg.Metrics, thread: t, registry: r, pace: l.pace, activity: l.activity, dispatch: l.dispatch, hints: l.hints, holds: l.holds,
		unmanaged: l.unmanaged, poll: l.poll, merge: l.merge, progress: l.progress, requests: l.requests, memory: l.memory, admission: l.admission, estimates: l.estimates, unhooked: map[*Client]bool{},
	}
	l.poll.follow = l.pages.follow
	return l
}

func (l *Loop) run() {
	runtime.LockOSThread() // never unlocked, so that the raised priority ends with the goroutine
	defer close(l.done)
	got := raisePriority()
	l.stats.scheduling.Store(&got)
	l.cfg.Log.Info("engine loop started", "scheduling", got)
	events := make([]unix.EpollEvent, 256)
	l.tick = clock.Now()
	if r := l.cfg.Recorder; r != nil {
		r.Attach(l.engine.Engine, l.tick, l.registry.programOf)
	}
	l.engine.Watch(l.activity.traced)
	for !l.quit.Load() {
		l.arm()
		wait := -1
		if l.publisher.building != nil || len(l.beating) > 0 || len(l.dispatch.lateGates) > 0 {
			wait = 0
		}
		n, err := unix.EpollWait(l.epoll, events, wait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			l.cfg.Log.Error("engine loop failed", "err", err)
			return // the daemon ends with it: see Done
		}
		l.stats.wakes.Add(1)
		l.pass(events[:max(n, 0)])
	}
}

// pass handles all pending events: each client that rang once, a bounded number of requests, the
// heartbeat if due, and then one decision.
func (l *Loop) pass(events []unix.EpollEvent) {
	now := clock.Now()
	l.pace.begin(now)
	l.dispatch.openLate()
	called := l.publisher.asked() || l.mail.late // a reader sees what was requested before it asked
	for i := range events {
		switch fd := events[i].Fd; {
		case fd == int32(l.wake):
			called = true
		case fd == int32(l.timer):
			// The next arm clears the expiry.
			l.armed = 0
		default:
			if c := l.registry.bells[fd]; c != nil {
				l.stats.rings.Add(1)
				l.pages.serveDoorbell(now, c)
			}
		}
	}
	// Decide before serving requests: a program may be waiting for its launch.
	l.decideCharged(now)
	if called {
		l.serve(l.pace)
	}
	if now = clock.Now(); now >= l.tick {
		l.heartbeat(now)
	}
	l.beatSome(now)
	l.hints.applyWaiting(now)
	l.decideCharged(now)
	l.publish(clock.Now())
}

// heartbeat updates every page, extends the leases and detects clients that have recovered by
// themselves.
func (l *Loop) heartbeat(now model.Time) {
	l.stats.late.Record(now.Sub(l.tick))
	l.tick = now + tickPeriod
	l.stats.beat.Store(int64(now))
	counts := l.engine.Stats()
	l.stats.counts.Store(&counts)
	l.poll.sample(now)
	l.activity.usage.Step(now)
	l.merge.beats++
	l.memory.decide(now, true)
	l.beating = slices.AppendSeq(l.beating[:0], maps.Values(l.registry.clients))
}

// beatSome updates some of the pages that the heartbeat concerns.
func (l *Loop) beatSome(now model.Time) {
	n := min(len(l.beating), beatsPerPass)
	for _, c := range l.beating[:n] {
		if l.registry.clients[c.ID] != c {
			continue
		}
		c.page.Heartbeat(now)
		l.requests.readMarks(now, c)
		l.requests.watch(now, c)
		l.memory.read(now, c)
		if c.use.Update(now, l.activity.usage) {
			c.touch()
		}
		l.progress.watchCopies(now, c)
		l.hints.tick(c)
		changed := c.leases.Tick(now)
		r := c.page.Recoveries()
		if all := r != c.recoveries; changed || all {
			c.recoveries = r
			for _, w := range c.session.Workers() {
				w.LeaseChanged(all)
			}
		}
		if c.merge.adds = 0; c.merge.waiting {
			c.merge.waiting = false
			l.pace.throttle(c) // its doorbell rings in the next window, for the next batch
		}
	}
	l.beating = l.beating[n:]
}

// decideCharged decides and charges the users who rang or requested something.
func (l *Loop) decideCharged(now model.Time) {
	if l.pace.bills.none() {
		l.memory.decide(now, false)
		l.decide(now)
		return
	}
	start := clock.Now()
	l.memory.decide(now, false)
	l.decide(now)
	l.pace.bills.pay(clock.Now().Sub(start))
}

// decide runs the engine if it has new input or is due, and applies its decision.
func (l *Loop) decide(now model.Time) {
	if l.dispatch.stopping || !l.engine.dirty && now < l.due {
		return
	}
	l.poll.endStale(now)
	l.engine.dirty = false
	start := clock.Now()
	l.progress.read(now)
	changes, due := l.engine.Decide(now)
	l.due = due
	l.stats.decisions.Add(1)
	l.stats.decision.Record(clock.Now().Sub(start))
	l.dispatch.applyAll(now, changes)
	l.estimates.applyChanges(now)
	l.logProtection()
	l.poll.begin(now)
	if len(l.pages.becameBusy) > 0 {
		end := clock.Now()
		for _, t := range l.pages.becameBusy {
			// Clients write these timestamps: ignore implausible ones.
			if d := end.Sub(t); d >= 0 && d < 10*time.Second {
				l.stats.busyToDecision.Record(d)
			}
		}
		l.pages.becameBusy = l.pages.becameBusy[:0]
	}
}

// arm sets the timer to the next heartbeat or the engine's wake-up.
func (l *Loop) arm() {
	next := l.tick
	if !l.dispatch.stopping {
		next = l.memory.due(min(next, l.due))
	}
	if len(l.pace.throttled) > 0 || len(l.hints.waiting) > 0 || l.mail.late {
		next = min(next, l.pace.windowEnd)
	}
	if l.publisher.wanted.Load() != nil {
		next = min(next, l.publisher.next)
	}
	if next == l.armed {
		return
	}
	l.armed = next
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, int64(next)))}
	_ = unix.TimerfdSettime(l.timer, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// logProtection reports the processes whose protection was dropped or resumed. The log limits its rate.
func (l *Loop) logProtection() {
	for _, p := range l.engine.Protected() {
		figures := slog.Group("protection", "pid", p.PID, "device", p.Device.String(), "p99", p.P99.Round(time.Microsecond),
			"native_p99", p.NativeP99.Round(time.Microsecond), "source", string(p.Source), "costs_others", p.CostShare)
		if p.Native {
			l.cfg.Log.Info("protection dropped: not worth its cost, the process shares the GPU natively", figures)
		} else {
			l.cfg.Log.Info("protection resumed, on trial", figures)
		}
		for _, c := range l.registry.byPID[p.PID] {
			c.touch()
		}
	}
}
