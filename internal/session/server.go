// SPDX-License-Identifier: Apache-2.0

// Package session serves applications: the socket, peer credentials, limits, one session with a
// shared page per process, its frames, its device workers and its end. Scheduling state belongs to
// package loop; a session reaches it through the methods of loop.Loop.
package session

import (
	"context"
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
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// Config configures a server.
type Config struct {
	Loop     *loop.Loop
	Listener *net.UnixListener // unixpacket
	Log      *slog.Logger
	Metrics  *driver.Metrics

	// NewHardware opens the drivers' side of a new session; nil: there is no driver.
	NewHardware func(driver.SessionOptions) driver.Session

	MaxSessions, MaxSessionsPerUID int // 0: 4096 and 1024

	// Peer reads the credentials of a connection; nil: PeerCredentials. Tests replace it to
	// simulate several processes and users.
	Peer func(*net.UnixConn) (Credentials, error)
}

// Server owns the sessions.
type Server struct {
	cfg     Config
	log     *slog.Logger
	metrics *driver.Metrics
	reaper  *reaper
	loop    *loop.Loop

	ctx        context.Context
	cancel     context.CancelFunc
	handshakes chan struct{} // limits the handshakes in progress
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

// New starts a server that accepts clients.
func New(cfg Config) (*Server, error) {
	if cfg.MaxSessions == 0 {
		cfg.MaxSessions = 4096
	}
	if cfg.MaxSessionsPerUID == 0 {
		cfg.MaxSessionsPerUID = 1024
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Peer == nil {
		cfg.Peer = PeerCredentials
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
	srv := &Server{
		cfg: cfg, log: cfg.Log, metrics: cfg.Metrics, reaper: r, loop: cfg.Loop,
		ctx: ctx, cancel: cancel, handshakes: make(chan struct{}, 512),
		sessions: map[model.SessionID]*Session{}, perUID: map[int]int{}, pending: map[int]int{}, refused: map[string]uint64{},
	}
	if cfg.Listener != nil {
		srv.wg.Go(srv.accept)
	}
	srv.wg.Go(srv.watchNice)
	return srv, nil
}

// Close resumes every process and ends all sessions. It waits a bounded time for devices; after
// that, clients recover by themselves. The caller stops the loop afterwards.
func (srv *Server) Close() {
	srv.mu.Lock()
	if srv.closing {
		srv.mu.Unlock()
		return
	}
	srv.closing = true // from here on newSession refuses
	srv.mu.Unlock()
	if srv.cfg.Listener != nil {
		_ = srv.cfg.Listener.Close()
	}
	// Gates first: they are memory and open in one pass of the loop.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	srv.loop.OpenGates(ctx)
	for _, s := range srv.all() {
		s.end(false, "the daemon is stopping")
	}
	for ctx.Err() == nil && srv.count() > 0 {
		time.Sleep(time.Millisecond)
	}
	srv.cancel()
	for _, s := range srv.all() { // connections still open would block wg.Wait
		s.end(false, "the daemon is stopping")
	}
	srv.reaper.stop()
	srv.wg.Wait()
}

func (srv *Server) all() []*Session {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	return slices.Collect(maps.Values(srv.sessions))
}

// Refresh makes every session probe its drivers again.
func (srv *Server) Refresh() {
	for _, s := range srv.all() {
		s.Refresh()
	}
}

func (srv *Server) count() int {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	return len(srv.sessions)
}

func errStopping() *refusal { return &refusal{"stopping", "the daemon is stopping"} }

// reserve reserves a place for a session, or returns why there is none.
func (srv *Server) reserve(uid int) *refusal {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	switch {
	case srv.closing:
		return errStopping()
	case len(srv.sessions) >= srv.cfg.MaxSessions:
		return &refusal{"full", fmt.Sprintf("client limit reached (%d)", srv.cfg.MaxSessions)}
	case srv.perUID[uid] >= srv.cfg.MaxSessionsPerUID:
		return &refusal{"full_uid", fmt.Sprintf("client limit of uid %d reached (%d)", uid, srv.cfg.MaxSessionsPerUID)}
	case srv.pending[uid] >= helloPerUID:
		return &refusal{"full_hello", fmt.Sprintf("too many connections of uid %d have not sent HELLO (%d)", uid, helloPerUID)}
	}
	srv.perUID[uid]++
	return nil
}

func (srv *Server) unreserve(uid int) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if srv.perUID[uid]--; srv.perUID[uid] <= 0 {
		delete(srv.perUID, uid)
	}
}

func (srv *Server) pend(uid, n int) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if srv.pending[uid] += n; srv.pending[uid] <= 0 {
		delete(srv.pending, uid)
	}
}

// newSession creates the parts that every session has, and registers the session. o has the options
// that depend on the kind of session.
// Preconditions: the caller has reserved a place.
func (srv *Server) newSession(s *Session, o loop.ClientOptions) (memfd int, err error) {
	id := srv.nextID.Add(1)
	page, memfd, err := wire.NewPage(id)
	if err != nil {
		return -1, err
	}
	s.ID, s.server, s.page = model.SessionID(id), srv, page
	s.lease = driver.NewLease(page, wire.HeartbeatLimitNS)
	s.workers = map[model.DeviceID]*driver.Worker{}
	o.Identity, o.Session, o.Page, o.Lease = s.Identity, s, page, s.lease
	s.client = srv.loop.NewClient(o)
	s.probe = make(chan struct{}, 1)
	s.freed = make(chan struct{})
	s.ctx, s.cancel = context.WithCancel(srv.ctx)
	srv.mu.Lock()
	closing := srv.closing
	if !closing {
		srv.sessions[s.ID] = s
	}
	srv.mu.Unlock()
	if closing { // HELLO arrived after Close had ended all sessions
		s.cancel()
		page.Release()
		_ = unix.Close(memfd)
		return -1, errStopping()
	}
	srv.total.Add(1)
	return memfd, nil
}

// remove removes an ended session from the loop and then releases its place.
func (srv *Server) remove(s *Session) {
	srv.loop.Remove(s.client)
	srv.mu.Lock()
	delete(srv.sessions, s.ID)
	srv.mu.Unlock()
	srv.unreserve(s.UID)
}

func (srv *Server) countRefusal(name string) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	srv.refused[name]++
}

// PIDs returns the processes that have a session. It works while the loop is blocked.
func (srv *Server) PIDs() map[int]bool {
	out := map[int]bool{}
	for _, s := range srv.all() {
		out[s.PID] = true
	}
	return out
}

// HardwareQueues queries the hardware of a process; it may take as long as the device does.
func (srv *Server) HardwareQueues(ctx context.Context, pid int) ([]driver.HardwareQueue, error) {
	found, out := false, []driver.HardwareQueue(nil)
	for _, s := range srv.all() {
		if s.PID != pid {
			continue
		}
		found = true
		more, err := s.hw.HardwareQueues(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	if !found {
		return nil, loop.ErrUnknownPID
	}
	return out, nil
}

// Stats are the metrics of the server.
type Stats struct {
	Sessions      int
	SessionsTotal uint64
	Refused       map[string]uint64
	Targets       []TargetStats
}

// TargetStats are the metrics of one worker.
type TargetStats struct {
	PID    int
	Device model.DeviceID
	driver.WorkerStats
}

// Stats returns the metrics. It works while the loop is blocked.
func (srv *Server) Stats() Stats {
	srv.mu.Lock()
	all := slices.Collect(maps.Values(srv.sessions))
	st := Stats{Sessions: len(all), SessionsTotal: srv.total.Load(), Refused: maps.Clone(srv.refused)}
	srv.mu.Unlock()
	for _, s := range all {
		for gpu, w := range s.Workers() {
			st.Targets = append(st.Targets, TargetStats{s.PID, gpu, w.Stats()})
		}
	}
	slices.SortFunc(st.Targets, func(a, b TargetStats) int { return a.PID - b.PID })
	return st
}
