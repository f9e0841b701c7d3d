// SPDX-License-Identifier: Apache-2.0

// Package hub serves applications: the socket and its peer credentials, one
// session with a shared page per process, and the loop that runs the engine.
package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/wire"
)

// Config is what a hub needs.
type Config struct {
	Engine   *engine.Engine
	Listener *net.UnixListener // unixpacket
	Log      *slog.Logger
	Metrics  *driver.Metrics

	// NewHardware makes the drivers' side of a new session; nil: there is no driver.
	NewHardware func(driver.SessionOptions) driver.Session

	// UID is the daemon's. On a root daemon clients of other users may not raise
	// themselves above priority 0 unless AllowPriority is set.
	UID           int
	AllowPriority bool

	// Private: the daemon is there for one program and its children, which may choose the policy.
	Private bool

	MaxSessions, MaxSessionsPerUID int // 0: 4096 and 1024

	Recorder record.Recorder // writes down what the engine is told and decides; nil: nobody

	peer func(*net.UnixConn) (credentials, error) // tests make several processes of one
}

// Hub owns the sessions.
type Hub struct {
	cfg     Config
	log     *slog.Logger
	metrics *driver.Metrics
	reaper  *reaper
	loop    *loop

	ctx        context.Context
	cancel     context.CancelFunc
	handshakes chan struct{} // bounds how many are under way
	wg         sync.WaitGroup
	nextID     atomic.Uint64
	total      atomic.Uint64

	mu       sync.Mutex
	closing  bool
	sessions map[model.SessionID]*Session
	perUID   map[int]int
	pending  map[int]int // connections without HELLO, by uid
	refused  map[string]uint64
}

// ErrStopped is a request to a hub that has ended.
var ErrStopped = errors.New("the daemon is stopping")

// New starts the loop and accepts clients.
func New(cfg Config) (*Hub, error) {
	if cfg.MaxSessions == 0 {
		cfg.MaxSessions = 4096
	}
	if cfg.MaxSessionsPerUID == 0 {
		cfg.MaxSessionsPerUID = 1024
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.peer == nil {
		cfg.peer = peer
	}
	if cfg.Metrics == nil {
		cfg.Metrics = &driver.Metrics{}
	}
	if cfg.NewHardware == nil {
		cfg.NewHardware = func(driver.SessionOptions) driver.Session { return driver.Combine("no driver") }
	}
	r, err := newReaper()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	h := &Hub{
		cfg: cfg, log: cfg.Log, metrics: cfg.Metrics, reaper: r,
		ctx: ctx, cancel: cancel, handshakes: make(chan struct{}, 512),
		sessions: map[model.SessionID]*Session{}, perUID: map[int]int{}, pending: map[int]int{}, refused: map[string]uint64{},
	}
	if h.loop, err = newLoop(h, cfg.Engine); err != nil {
		r.stop()
		cancel()
		return nil, err
	}
	go h.loop.run()
	if cfg.Listener != nil {
		h.wg.Go(h.accept)
	}
	h.wg.Go(h.watchNice)
	return h, nil
}

// Close resumes every process, ends all sessions and stops the loop. It waits a
// bounded time for devices; after that, clients recover by themselves.
func (h *Hub) Close() {
	h.mu.Lock()
	if h.closing {
		h.mu.Unlock()
		return
	}
	h.closing = true // from here on newSession enters nobody
	h.mu.Unlock()
	if h.cfg.Listener != nil {
		_ = h.cfg.Listener.Close()
	}
	// Gates first: memory, done in one pass.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	opened := make(chan struct{})
	if h.post(ctx, func(l *loop) { l.openAll(); close(opened) }) == nil { // also late
		select {
		case <-opened:
		case <-ctx.Done():
		}
	}
	for _, s := range h.all() {
		s.end(false, "daemon stops")
	}
	for ctx.Err() == nil && h.count() > 0 {
		time.Sleep(time.Millisecond)
	}
	h.cancel()
	h.loop.stop()
	for _, s := range h.all() { // nobody reads a connection for good, whatever happened meanwhile
		s.end(false, "daemon stops")
	}
	h.reaper.stop()
	h.wg.Wait()
}

func (h *Hub) all() []*Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.sessions))
}

// Refresh has every session ask its drivers again what they can do.
func (h *Hub) Refresh() {
	for _, s := range h.all() {
		s.Refresh()
	}
}

func (h *Hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sessions)
}

func errStopping() *refusal { return &refusal{"stopping", "the daemon is stopping"} }

// reserve counts a new session, or says why there can't be one.
func (h *Hub) reserve(uid int) *refusal {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closing:
		return errStopping()
	case len(h.sessions) >= h.cfg.MaxSessions:
		return &refusal{"full", fmt.Sprintf("client limit reached (%d)", h.cfg.MaxSessions)}
	case h.perUID[uid] >= h.cfg.MaxSessionsPerUID:
		return &refusal{"full_uid", fmt.Sprintf("client limit of uid %d reached (%d)", uid, h.cfg.MaxSessionsPerUID)}
	case h.pending[uid] >= helloPerUID:
		return &refusal{"full_hello", fmt.Sprintf("too many connections of uid %d have not sent HELLO (%d)", uid, helloPerUID)}
	}
	h.perUID[uid]++
	return nil
}

func (h *Hub) unreserve(uid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.perUID[uid]--; h.perUID[uid] <= 0 {
		delete(h.perUID, uid)
	}
}

func (h *Hub) pend(uid, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending[uid] += n; h.pending[uid] <= 0 {
		delete(h.pending, uid)
	}
}

// newSession makes the parts that every session has and enters it. The caller has reserved.
func (h *Hub) newSession(s *Session) (memfd int, err error) {
	id := h.nextID.Add(1)
	page, memfd, err := wire.NewPage(id)
	if err != nil {
		return -1, err
	}
	s.ID, s.hub, s.page, s.started = model.SessionID(id), h, page, time.Now()
	s.lease = driver.NewLease(page, wire.HeartbeatLimitNS)
	s.workers = map[model.DeviceID]*driver.Worker{}
	s.queues = map[uint32]*queue{}
	s.onGPU = map[model.DeviceID]int{}
	s.sent = map[model.DeviceID]model.Desired{}
	s.kick = make(chan struct{}, 1)
	s.freed = make(chan struct{})
	s.ctx, s.cancel = context.WithCancel(h.ctx)
	h.mu.Lock()
	closing := h.closing
	if !closing {
		h.sessions[s.ID] = s
	}
	h.mu.Unlock()
	if closing { // HELLO came after Close had ended everybody
		s.cancel()
		page.Release()
		_ = unix.Close(memfd)
		return -1, errStopping()
	}
	h.total.Add(1)
	return memfd, nil
}

// forget removes an ended session from the loop and then frees its number.
func (h *Hub) forget(s *Session) {
	// Not bound to the hub's context: while the hub closes, the loop is the last to go.
	_ = h.call(context.Background(), func(l *loop) { l.remove(s) })
	h.mu.Lock()
	delete(h.sessions, s.ID)
	h.mu.Unlock()
	h.unreserve(s.UID)
}

// post hands f to the loop. It blocks only the caller while the loop's queue is full.
func (h *Hub) post(ctx context.Context, f func(l *loop)) error { return h.loop.post(ctx, f) }

// call runs f on the loop and waits for it. After an error f was not run and never will be, so the
// caller owns what f would have written.
func (h *Hub) call(ctx context.Context, f func(l *loop)) error {
	var taken atomic.Bool // by the loop, or by the caller who gives up
	done := make(chan struct{})
	err := h.loop.post(ctx, func(l *loop) {
		if taken.CompareAndSwap(false, true) {
			f(l)
			close(done)
		}
	})
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-h.loop.done:
		err = ErrStopped
	case <-ctx.Done():
		err = ctx.Err()
	}
	if taken.CompareAndSwap(false, true) {
		return err
	}
	<-done // it runs, or has run
	return nil
}

func (h *Hub) countRefusal(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused[name]++
}
