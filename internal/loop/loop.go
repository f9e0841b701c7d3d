// SPDX-License-Identifier: Apache-2.0

// Package loop runs the engine on one thread: doorbells, heartbeats, accounting, hints and the
// decisions' way to gates and workers. Package session owns the connections; the loop knows a
// session only through the Session interface, and sessions reach the loop through requests.
package loop

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/wire"
)

// loop is the engine's goroutine, locked to an OS thread. It waits for
// doorbells, for requests from elsewhere and for time; it never blocks on a device or a socket.
//
// There is one for all devices, not one a device: a process may be on several
// (gangs, policies across devices), its page has one lease and one heartbeat,
// and the heartbeat must come from where decisions are made. What may hang, the
// driver, is kept away from it by one worker for each process on a device.
type Loop struct {
	cfg     Config
	log     *slog.Logger
	metrics *driver.Metrics
	engine  *engine.Engine

	epoll, wake, timer int
	requests           chan func()
	quit               atomic.Bool
	done               chan struct{}

	fdMu   sync.RWMutex // keeps a late ring from writing to a number that is somebody else's
	closed bool

	stopping bool // no more decisions: everybody is being set free

	clients    map[model.SessionID]*Client
	bells      map[int32]*Client
	queueCount atomic.Int64
	bare       atomic.Int64 // queues whose work is only guessed; see bare.go
	dirty      bool         // something happened that the engine must decide about
	due        model.Time   // when it wants to be asked again
	tick       model.Time   // next heartbeat
	armed      model.Time   // what the timer is set to

	quiet map[*queue]*Client // whose doorbells are silent

	// How much doorbells take, see pace.go.
	accounts  map[int]*account // by uid
	rang      []*account       // in this pass, once a ring
	deaf      []*Client        // not listened to in this window
	deafened  uint64           // how often that was
	window    uint64
	windowEnd model.Time

	risen      []model.Time // idle->busy changes of this pass, as the clients dated them
	scheduling atomic.Pointer[string]

	// Of the decision that is being carried out: what was resumed on each GPU, for the stops to
	// come after.
	deciding  bool
	unsettled []*Client     // whose workers are yet to be told
	guesses   []guessChange // what it changes about queues whose work is a guess; told to the engine afterwards
	resumed   map[model.DeviceID][]<-chan struct{}

	retargets uint64 // how often a worker's wish was added up

	gpus  gpuTimes
	waits driver.Histogram // of queues with work that had to stop, until they may run again

	beat                           atomic.Int64 // model.Time of the last heartbeat
	wakes, rings, decisions        atomic.Uint64
	counts                         atomic.Pointer[engine.Stats] // as of the last heartbeat
	busyToDecision, decision, late driver.Histogram
}

// Bounds of the loop's own work.
const (
	queueDepth      = 1024 // requests waiting for the loop
	requestsPerPass = 64
	tickPeriod      = model.Time(wire.HeartbeatPeriodNS)
	maxQueues       = 16384 // in all
	maxGPUs         = 16    // of one process
	addsPerTick     = 64    // queues one process may create in a heartbeat; the rest wait for the next
)

// Config configures a loop.
type Config struct {
	Engine  *engine.Engine
	Log     *slog.Logger
	Metrics *driver.Metrics

	// UID is the daemon's. On a root daemon, clients of other users may not request priorities
	// above 0 unless AllowPriority is set.
	UID           int
	AllowPriority bool

	// Private: the daemon serves one program and its children, which may choose the policy.
	Private bool

	Recorder record.Recorder // records the engine's inputs and decisions; may be nil
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
		cfg: cfg, log: cfg.Log, metrics: cfg.Metrics, engine: cfg.Engine, epoll: -1, wake: -1, timer: -1,
		requests: make(chan func(), queueDepth), done: make(chan struct{}),
		clients: map[model.SessionID]*Client{}, bells: map[int32]*Client{}, due: model.Never,
		quiet: map[*queue]*Client{}, accounts: map[int]*account{}, gpus: gpuTimes{}, resumed: map[model.DeviceID][]<-chan struct{}{},
	}
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

func (l *Loop) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its priority with it
	defer close(l.done)
	got := hurry()
	l.scheduling.Store(&got)
	l.log.Info("engine loop runs", "scheduling", got)
	events := make([]unix.EpollEvent, 256)
	l.tick = l.now()
	if r := l.cfg.Recorder; r != nil {
		r.Attach(l.engine, l.tick, l.programOf)
	}
	for !l.quit.Load() {
		l.arm()
		n, err := unix.EpollWait(l.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			l.log.Error("engine loop ends", "err", err)
			return
		}
		l.wakes.Add(1)
		l.pass(events[:max(n, 0)])
	}
}

// pass handles all that has happened: each session that rang once, a bounded
// number of requests, the heartbeat if due, and then one decision.
func (l *Loop) pass(events []unix.EpollEvent) {
	now := l.now()
	l.listen(now)
	called := false
	for i := range events {
		switch fd := events[i].Fd; {
		case fd == int32(l.wake):
			called = true
		case fd == int32(l.timer):
			// Setting it again clears it.
			l.armed = 0
		default:
			if c := l.bells[fd]; c != nil {
				l.rings.Add(1)
				l.answer(now, c)
			}
		}
	}
	// Doorbells are decided about before requests: somebody is waiting.
	if len(l.rang) == 0 {
		l.decide(now)
	} else {
		start := l.now()
		l.decide(now)
		l.charge(l.now().Sub(start))
	}
	if called {
		l.serve()
	}
	if now = l.now(); now >= l.tick {
		l.heartbeat(now)
	}
	l.decide(now)
}

func (l *Loop) serve() {
	var b [8]byte
	_, _ = unix.Read(l.wake, b[:])
	for range requestsPerPass {
		select {
		case f := <-l.requests:
			f()
		default:
			return
		}
	}
	l.ring() // the rest comes after the doorbells of the next pass
}

// heartbeat tells every client that decisions are still made, moves the leases
// and looks whether a client had to help itself.
func (l *Loop) heartbeat(now model.Time) {
	l.late.Record(now.Sub(l.tick))
	l.tick = now + tickPeriod
	l.beat.Store(int64(now))
	counts := l.engine.Stats()
	l.counts.Store(&counts)
	l.sample(now)
	for _, c := range l.clients {
		c.page.Heartbeat(now)
		l.readMarks(now, c)
		l.tickHints(now, c)
		void := c.lease.Tick(now)
		r := c.page.Recoveries()
		if recovered := r != c.recoveries; void || recovered {
			c.recoveries = r
			for _, w := range c.session.Workers() {
				if recovered {
					w.Recovered()
				} else {
					w.Redo()
				}
			}
		}
		waiting := c.adds > addsPerTick
		c.adds = 0
		if waiting {
			l.scan(now, c) // which may leave some for the next time again
		}
	}
}

// decide asks the engine if there is anything to ask, and carries out the answer.
func (l *Loop) decide(now model.Time) {
	if l.stopping || !l.dirty && now < l.due {
		return
	}
	l.rouse(now)
	l.dirty = false
	start := l.now()
	changes, due := l.engine.Decide(now)
	l.due = due
	l.decisions.Add(1)
	l.decision.Record(l.now().Sub(start))
	l.publishAll(now, changes)
	l.guessStops(now)
	l.hush(now)
	if len(l.risen) > 0 {
		end := l.now()
		for _, t := range l.risen {
			// A client that writes nonsense spoils its own figure at most.
			if d := end.Sub(t); d >= 0 && d < 10*time.Second {
				l.busyToDecision.Record(d)
			}
		}
		l.risen = l.risen[:0]
	}
}

// publishAll carries a decision out. Who gets the GPU goes first and who has to leave
// it after that: the driver takes one request after the other, and the other way round the GPU
// would be idle between the two. A stop waits for nobody else.
func (l *Loop) publishAll(now model.Time, changes []model.Desired) {
	l.deciding = true
	for _, stop := range []bool{false, true} {
		for i := range changes {
			if (changes[i].Suspend != 0) == stop {
				l.publish(now, changes[i])
			}
		}
		for i, c := range l.unsettled {
			l.settle(c)
			l.unsettled[i] = nil
		}
		l.unsettled = l.unsettled[:0]
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
	if len(l.deaf) > 0 {
		next = min(next, l.windowEnd)
	}
	if next == l.armed {
		return
	}
	l.armed = next
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, int64(next)))}
	_ = unix.TimerfdSettime(l.timer, unix.TFD_TIMER_ABSTIME, &spec, nil)
}
