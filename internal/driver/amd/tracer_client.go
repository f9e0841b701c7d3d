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
	pingsLost  = 10              // unanswered pings before a supervisor is ended, which frees its process
	launchTime = 4 * time.Second // to start and seize the process
	killTime   = time.Second     // from SIGKILL to exit
	retakeTime = 2 * time.Second // for the driver to release the previous debugger
	retakeWait = 10 * time.Millisecond
	// Limit on replacements of supervisors that end unexpectedly.
	deathsMost = 3
	deathsTime = 10 * time.Second
)

var (
	errNoTracer     = errors.New("the supervisor has ended")
	errTracerClosed = errors.New("the supervisor is closed")
)

// Tracer is the daemon's side of a supervisor. Requests block as long as the driver does.
type Tracer struct {
	guardian driver.Guardian
	log      *slog.Logger
	start    message
	ended    chan struct{}
	closing  chan struct{}

	ops    sync.Mutex // one request at a time, as the driver's single thread
	caught atomic.Uint64
	before atomic.Uint64 // part of caught from replaced supervisors

	mu     sync.Mutex
	child  *child // nil: none at present
	page   int    // -1: not guarded yet
	closed bool
}

// StartTracer starts a process's supervisor without suspending anything. socket is the virtual
// device's; empty: the real one.
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

// Guard hands over the session's page, which suspensions require.
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
		return nil // the replacement receives it
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

// Suspend suspends a GPU's queues under the lease in the page.
func (t *Tracer) Suspend(gpu uint32, kinds Kinds, grace uint32) ([]QueueResult, error) {
	return t.change("suspend", order{GPU: gpu, Kinds: kinds, Grace: grace})
}

// Resume resumes a GPU's queues.
func (t *Tracer) Resume(gpu uint32) ([]QueueResult, error) {
	return t.change("resume", order{GPU: gpu})
}

func (t *Tracer) change(op string, o order) ([]QueueResult, error) {
	r, err := t.ask(message{Op: op, order: o})
	results, bad := unpackList[QueueResult](r.Results)
	return results, errors.Join(err, bad)
}

// CaughtSoFar returns how many queues appeared during suspensions. Lock-free.
func (t *Tracer) CaughtSoFar() uint64 { return t.caught.Load() }

// Ended is closed when the process has ended, was released, or can no longer be traced.
func (t *Tracer) Ended() <-chan struct{} { return t.ended }

// Close ends the session, resumes the process and detaches it.
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

// count adds a supervisor's caught queues.
func (t *Tracer) count(c *child) { t.caught.Store(t.before.Load() + c.caught.Load()) }

// supervise keeps a supervisor running until the session ends.
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

// replace starts another supervisor; nil without an error: no longer needed.
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

// install hands the page to a new supervisor and then enables requests.
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

// beat pings a supervisor until it ends. Lost replies are counted, not timed, because this process
// may have been stopped.
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
		_ = c.post(message{Op: "ping"}, nil, nil)
	}
}

// launch starts the supervisor and makes it seize the target.
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
