// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
)

var _ Debugging = (*Tracer)(nil)

const (
	pingPeriod = 100 * time.Millisecond
	pingsLost  = 10              // that a tracer may owe before it is ended, which sets its process free
	launchTime = 4 * time.Second // for one to start and to seize its process
	killTime   = time.Second     // for one that was killed to be gone
	retakeTime = 2 * time.Second // for the driver to see that the debugger before this one has gone
	retakeWait = 10 * time.Millisecond
	// A tracer that ends without cause is replaced, so many times in so long.
	deathsMost = 3
	deathsTime = 10 * time.Second
)

var (
	errNoTracer     = errors.New("its supervisor has ended")
	errTracerClosed = errors.New("its supervisor is closed")
)

// Tracer is the daemon's end of the process that debugs another one. Methods that make a request
// block as long as the driver does.
type Tracer struct {
	guardian driver.Guardian
	log      *slog.Logger
	start    message
	ended    chan struct{}
	closing  chan struct{}

	ops    sync.Mutex // one request at a time, as the driver's one thread takes them
	caught atomic.Uint64
	before atomic.Uint64 // of that: by tracers that were replaced

	mu     sync.Mutex
	child  *child // nil: none at the moment
	page   int    // -1: not guarded yet
	closed bool
}

// StartTracer starts a supervisor of a process: nothing of it is stopped by
// that. socket is the virtual device's; empty: the real one.
func StartTracer(g driver.Guardian, log *slog.Logger, pid int, socket string) (*Tracer, error) {
	t := &Tracer{
		guardian: g, log: log, ended: make(chan struct{}), closing: make(chan struct{}), page: -1,
		start: message{Op: "trace", PID: pid, Socket: socket},
	}
	var err error
	if t.child, err = t.launch(); err != nil {
		return nil, err
	}
	g.Guarding(1)
	go t.supervise(t.child)
	return t, nil
}

// Guard hands over the page of the session. Nothing can be suspended before.
func (t *Tracer) Guard(page int) error {
	own, err := unix.FcntlInt(uintptr(page), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("duplicate page: %w", err)
	}
	t.mu.Lock()
	if t.closed || t.page >= 0 {
		t.mu.Unlock()
		_ = unix.Close(own)
		return errTracerClosed
	}
	t.page = own
	c := t.child
	t.mu.Unlock()
	if c == nil {
		return nil // the next one gets it
	}
	_, err = c.ask(message{Op: "page"}, []int{page})
	return err
}

// Queues lists the process's queues, newest first.
func (t *Tracer) Queues() ([]QueueSnapshot, error) {
	r, err := t.ask(message{Op: "queues"})
	if err != nil {
		return nil, err
	}
	return unpackList[QueueSnapshot](r.Queues)
}

// Suspend stops a GPU's queues, under the lease that is in the page.
func (t *Tracer) Suspend(gpu uint32, kinds Kinds, grace uint32) ([]QueueResult, error) {
	return t.change("suspend", order{GPU: gpu, Kinds: kinds, Grace: grace})
}

// Resume lets a GPU's queues go on.
func (t *Tracer) Resume(gpu uint32) ([]QueueResult, error) {
	return t.change("resume", order{GPU: gpu})
}

func (t *Tracer) change(op string, o order) ([]QueueResult, error) {
	r, err := t.ask(message{Op: op, order: o})
	results, bad := unpackList[QueueResult](r.Results)
	return results, errors.Join(err, bad)
}

// CaughtSoFar is how many queues appeared while the others were stopped; it never waits.
func (t *Tracer) CaughtSoFar() uint64 { return t.caught.Load() }

// Ended is closed when the process has ended, was let go, or can't be traced any more.
func (t *Tracer) Ended() <-chan struct{} { return t.ended }

// Close ends the session: everything of the process runs, and nobody traces it.
func (t *Tracer) Close() error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.closing)
	}
	t.mu.Unlock()
	<-t.ended
	return nil
}

func (t *Tracer) ask(m message) (reply, error) {
	t.ops.Lock()
	defer t.ops.Unlock()
	t.mu.Lock()
	c := t.child
	t.mu.Unlock()
	if c == nil {
		select {
		case <-t.ended:
			return reply{}, fmt.Errorf("process %d: %w", t.start.PID, ErrGone)
		default:
			return reply{}, errNoTracer
		}
	}
	r, err := c.ask(m, nil)
	t.count(c)
	return r, err
}

// count takes over what a tracer has caught.
func (t *Tracer) count(c *child) { t.caught.Store(t.before.Load() + c.caught.Load()) }

// supervise sees to it that there is a tracer until the session ends.
func (t *Tracer) supervise(c *child) {
	log := t.log
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.closed = true
		if t.page >= 0 {
			_ = unix.Close(t.page)
		}
		t.guardian.Guarding(-1)
		close(t.ended)
	}()
	var deaths []time.Time
	for {
		t.beat(c)
		how := c.end()
		t.before.Add(c.caught.Swap(0))
		t.mu.Lock()
		t.child = nil
		over := t.closed || c.finished()
		t.mu.Unlock()
		if over {
			return
		}
		deaths = append(deaths, time.Now())
		if n := len(deaths); n > deathsMost && time.Since(deaths[n-1-deathsMost]) < deathsTime {
			log.Error("supervisor ended too often: the process is no longer scheduled")
			return
		}
		log.Warn("supervisor ended, starting another", "how", how)
		t.guardian.Replaced()
		var err error
		if c, err = t.replace(); c == nil {
			if err != nil && !errors.Is(err, ErrGone) {
				log.Error("supervisor not replaced: the process is no longer scheduled", "err", err)
			}
			return
		}
	}
}

// replace starts another tracer; nil without an error: nobody needs it any more.
func (t *Tracer) replace() (*child, error) {
	for end := time.Now().Add(retakeTime); ; {
		c, err := t.launch()
		if err == nil {
			if err = t.install(c); err == nil {
				return c, nil
			}
			c.end()
		}
		if errors.Is(err, ErrGone) || time.Now().After(end) {
			return nil, err
		}
		select {
		case <-t.closing:
			return nil, nil
		case <-time.After(retakeWait):
		}
	}
}

// install gives a new tracer the page, and then the requests.
func (t *Tracer) install(c *child) error {
	for handed := -1; ; {
		t.mu.Lock()
		if t.page == handed {
			t.child = c
			t.mu.Unlock()
			return nil
		}
		handed = t.page
		t.mu.Unlock()
		if _, err := c.ask(message{Op: "page"}, []int{handed}); err != nil {
			return err
		}
	}
}

// beat asks a tracer whether it lives until it has gone, or shall go. Lost answers are counted, not timed: this
// process may have been stopped.
func (t *Tracer) beat(c *child) {
	tick := time.NewTicker(pingPeriod)
	defer tick.Stop()
	for lost := 0; ; lost++ {
		select {
		case <-c.gone:
			return
		case <-c.over:
			return
		case <-t.closing:
			return
		case <-tick.C:
		}
		if c.heard.Swap(false) {
			lost = 0
		}
		if lost > pingsLost {
			t.log.Warn("supervisor does not answer, ending it", "supervisor", c.cmd.Process.Pid)
			_ = c.cmd.Process.Kill()
			lost = 0
		}
		t.count(c)
		_ = c.tell(message{Op: "ping"}, nil, nil)
	}
}

// launch starts the process and has it seize the target.
func (t *Tracer) launch() (*child, error) {
	sock, cmd, err := t.guardian.Spawn("trace", strconv.Itoa(t.start.PID))
	if err != nil {
		return nil, fmt.Errorf("start supervisor: %w", err)
	}
	c := &child{sock: sock, cmd: cmd, pending: map[uint64]chan<- reply{}}
	c.exited, c.gone, c.over = make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() { _ = cmd.Wait(); close(c.exited) }()
	go c.read()
	late := time.AfterFunc(launchTime, func() { _ = cmd.Process.Kill() })
	_, err = c.begin(t.start)
	if !late.Stop() {
		err = errors.New("start supervisor: no answer in time")
	}
	if err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}
