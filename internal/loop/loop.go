// SPDX-License-Identifier: Apache-2.0

// Package loop runs the engine on one thread: doorbells, heartbeats, accounting, hints and the
// decisions' way to gates and workers. Package session owns the connections; the loop knows a
// session only through the Session interface, and sessions reach the loop through requests.
package loop

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/budget"
	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/terms"
	"xsched/internal/wire"
)

// Loop is the engine's goroutine, locked to an OS thread. It waits for doorbells, requests and
// timers; it never blocks on a device or a socket.
//
// One loop serves all devices. A process may use several devices, its page has one heartbeat, and the
// heartbeat must come from the thread that decides. Drivers may hang, so each
// process has one worker per device that isolates the loop from them.
type Loop struct {
	*terms.Book // limits of the users

	cfg     Config
	log     *slog.Logger
	metrics *driver.Metrics
	engine  *engine.Engine

	epoll, wake, timer int
	mail               *mailbox
	quit               atomic.Bool
	done               chan struct{}

	fdMu   sync.RWMutex // keeps a late ring from writing to a reused descriptor
	closed bool

	beats     uint64
	beating   []*Client // pages to update by this heartbeat
	stale     []*Client // clients whose hint updates have waited
	lateGates []*queue  // gates to open
	opened    int       // gates opened in this pass

	stopping bool // every gate is open; no more decisions

	publisher publisher // see snapshot.go
	config    atomic.Pointer[engine.Config]

	clients     map[model.SessionID]*Client
	byPID       map[int][]*Client
	bells       map[int32]*Client
	queueCount  atomic.Int64
	bare        atomic.Int64     // queues of programs without hooks; see bare.go
	bareClients map[*Client]bool // those with such queues
	dirty       bool             // the engine has new input
	due         model.Time       // next wake-up of the engine
	tick        model.Time       // next heartbeat
	armed       model.Time       // current timer setting

	quiet map[model.DeviceID]*queue // queues whose clients do not ring, one per device at most; see quiet.go
	ended []*queue                  // scratch of endNow

	// Rate limit of doorbells; see pace.go.
	accounts  int // users with clients
	bills     bills
	throttled []*Client // doorbells ignored in this window
	window    uint64
	windowEnd model.Time

	becameBusy []model.Time // idle-to-busy transitions of this pass, as the clients dated them
	scheduling atomic.Pointer[string]

	// State of the decision in progress. Suspensions on a GPU wait for its resumptions.
	deciding       bool
	pendingUpdates []*Client     // clients whose workers are not yet updated
	guesses        []guessChange // changes of estimated queues, reported to the engine afterwards
	wishes         []together    // suspensions and resumptions of the current decision
	resumed        map[model.DeviceID][]<-chan struct{}

	segments []model.QueueID // scratch of lookAtSegments

	workerUpdates uint64 // number of times a worker's state was computed

	outsiders outsiders // unmanaged programs; see outsiders.go

	groups HeldGroups // see hold.go

	usage *meter.Usage
	waits driver.Histogram // time that busy queues were suspended

	beat                           atomic.Int64 // model.Time of the last heartbeat
	wakes, rings, decisions        atomic.Uint64
	snapshots, refused, throttles  atomic.Uint64
	folded, refusedQueues          atomic.Int64
	counts                         atomic.Pointer[engine.Stats] // as of the last heartbeat
	busyToDecision, decision, late driver.Histogram
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

	// Scan requests a scan for unmanaged programs, without blocking. The answer comes by
	// SetOutsiders. Nil: nobody scans, and no GPU counts as shared.
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
	l := &Loop{
		Book: terms.NewBook(cfg.UID, cfg.Limits),
		cfg:  cfg, bills: bills{budget: cfg.Budget}, log: cfg.Log, metrics: cfg.Metrics, engine: cfg.Engine, epoll: -1, wake: -1, timer: -1,
		mail: newMailbox(), done: make(chan struct{}),
		clients: map[model.SessionID]*Client{}, byPID: map[int][]*Client{}, bells: map[int32]*Client{}, due: model.Never,
		quiet: map[model.DeviceID]*queue{}, bareClients: map[*Client]bool{}, usage: meter.NewUsage(), resumed: map[model.DeviceID][]<-chan struct{}{},
	}
	l.publishConfig()
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	if err == nil {
		err = l.watch(l.wake, unix.EPOLLIN)
	}
	if err == nil {
		err = l.watch(l.timer, unix.EPOLLIN)
	}
	if err != nil {
		l.closeFDs()
		return nil, fmt.Errorf("start engine loop: %w", err)
	}
	go l.run()
	return l, nil
}

func (l *Loop) closeFDs() {
	l.fdMu.Lock()
	defer l.fdMu.Unlock()
	l.closed = true
	for _, fd := range []int{l.timer, l.wake, l.epoll} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

func (l *Loop) watch(fd int, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: int32(fd)}
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &e)
}

func (l *Loop) now() model.Time { return clock.Now() }

// Stop ends the loop. It waits for the current pass.
func (l *Loop) Stop() {
	l.quit.Store(true)
	l.ring()
	<-l.done
	l.closeFDs()
}

// Done is closed when the loop has ended, by Stop or because it can't go on.
func (l *Loop) Done() <-chan struct{} { return l.done }

func (l *Loop) run() {
	runtime.LockOSThread() // never unlocked, so that the raised priority ends with the goroutine
	defer close(l.done)
	got := raisePriority()
	l.scheduling.Store(&got)
	l.log.Info("engine loop started", "scheduling", got)
	events := make([]unix.EpollEvent, 256)
	l.tick = l.now()
	if r := l.cfg.Recorder; r != nil {
		r.Attach(l.engine, l.tick, l.programOf)
	}
	l.engine.Watch(l.traced)
	for !l.quit.Load() {
		l.arm()
		wait := -1
		if l.publisher.building != nil || len(l.beating) > 0 || len(l.lateGates) > 0 {
			wait = 0
		}
		n, err := unix.EpollWait(l.epoll, events, wait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			l.log.Error("engine loop failed", "err", err)
			return // the daemon ends with it: see Done
		}
		l.wakes.Add(1)
		l.pass(events[:max(n, 0)])
	}
}

// pass handles all pending events: each client that rang once, a bounded number of requests, the
// heartbeat if due, and then one decision.
func (l *Loop) pass(events []unix.EpollEvent) {
	now := l.now()
	l.beginWindow(now)
	l.openLate()
	called := l.publisher.asked() || l.mail.late // a reader sees what was requested before it asked
	for i := range events {
		switch fd := events[i].Fd; {
		case fd == int32(l.wake):
			called = true
		case fd == int32(l.timer):
			// The next arm clears the expiry.
			l.armed = 0
		default:
			if c := l.bells[fd]; c != nil {
				l.rings.Add(1)
				l.serveDoorbell(now, c)
			}
		}
	}
	// Decide before serving requests: a program may be waiting for its launch.
	l.decideCharged(now)
	if called {
		l.serve()
	}
	if now = l.now(); now >= l.tick {
		l.heartbeat(now)
	}
	l.beatSome(now)
	l.freshen(now)
	l.decideCharged(now)
	l.publish(l.now())
}

// heartbeat updates every page, extends the leases and detects clients that have recovered by
// themselves.
func (l *Loop) heartbeat(now model.Time) {
	l.late.Record(now.Sub(l.tick))
	l.tick = now + tickPeriod
	l.beat.Store(int64(now))
	counts := l.engine.Stats()
	l.counts.Store(&counts)
	l.sample(now)
	l.usage.Step(now)
	l.beats++
	l.beating = slices.AppendSeq(l.beating[:0], maps.Values(l.clients))
}

// beatSome updates some of the pages that the heartbeat concerns.
func (l *Loop) beatSome(now model.Time) {
	n := min(len(l.beating), beatsPerPass)
	for _, c := range l.beating[:n] {
		if l.clients[c.ID] != c {
			continue
		}
		c.page.Heartbeat(now)
		l.readRequests(now, c)
		l.watchRequests(now, c)
		if c.use.Update(now, l.usage) {
			c.touch()
		}
		l.watchCopies(now, c)
		l.tickHints(c)
		changed := c.leases.Tick(now)
		r := c.page.Recoveries()
		if all := r != c.recoveries; changed || all {
			c.recoveries = r
			for _, w := range c.session.Workers() {
				w.LeaseChanged(all)
			}
		}
		if c.adds = 0; c.waiting {
			c.waiting = false
			l.throttle(c) // its doorbell rings in the next window, for the next batch
		}
	}
	l.beating = l.beating[n:]
}

// decideCharged decides and charges the users who rang or requested something.
func (l *Loop) decideCharged(now model.Time) {
	if l.bills.none() {
		l.decide(now)
		return
	}
	start := l.now()
	l.decide(now)
	l.bills.pay(l.now().Sub(start))
}

// decide runs the engine if it has new input or is due, and applies its decision.
func (l *Loop) decide(now model.Time) {
	if l.stopping || !l.dirty && now < l.due {
		return
	}
	l.endQuiet(now)
	l.dirty = false
	start := l.now()
	l.lookAtSegments(now)
	changes, due := l.engine.Decide(now)
	l.due = due
	l.decisions.Add(1)
	l.decision.Record(l.now().Sub(start))
	l.applyDecision(now, changes)
	l.applyGuessChanges(now)
	l.logProtection()
	l.beginQuiet(now)
	if len(l.becameBusy) > 0 {
		end := l.now()
		for _, t := range l.becameBusy {
			// Clients write these timestamps: ignore implausible ones.
			if d := end.Sub(t); d >= 0 && d < 10*time.Second {
				l.busyToDecision.Record(d)
			}
		}
		l.becameBusy = l.becameBusy[:0]
	}
}

// applyDecision applies a decision, resumptions before suspensions. The driver serializes requests,
// so the opposite order would leave the GPU idle in between.
func (l *Loop) applyDecision(now model.Time, changes []model.Desired) {
	l.deciding = true
	for _, stop := range []bool{false, true} {
		for i := range changes {
			if (changes[i].Suspend != 0) == stop {
				l.apply(now, changes[i])
			}
		}
		for i, c := range l.pendingUpdates {
			l.updateWorkers(c)
			l.pendingUpdates[i] = nil
		}
		l.pendingUpdates = l.pendingUpdates[:0]
		l.fulfil()
	}
	l.deciding = false
	clear(l.resumed)
}

// arm sets the timer to the next heartbeat or the engine's wake-up.
func (l *Loop) arm() {
	next := l.tick
	if !l.stopping {
		next = min(next, l.due)
	}
	if len(l.throttled) > 0 || len(l.stale) > 0 || l.mail.late {
		next = min(next, l.windowEnd)
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
