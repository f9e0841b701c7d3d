// SPDX-License-Identifier: Apache-2.0

// Package session serves applications: the socket, peer credentials, limits, one session with a
// shared page per process, its frames, its device workers and its end. Scheduling state belongs to
// package loop; a session reaches it through the methods of loop.Loop.
package session

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/budget"
	"xsched/internal/driver"
	"xsched/internal/health"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/quarantine"
	"xsched/internal/wire"
)

// Config configures a server.
type Config struct {
	Loop     *loop.Loop
	Listener net.Listener // unixpacket
	Log      *slog.Logger
	Metrics  *driver.Metrics

	// NewHardware opens the drivers' side of a new session; nil: there is no driver.
	NewHardware func(driver.SessionOptions) driver.Session

	// Left is called when the session of a process ends that may continue on its own, before the
	// loop removes the client; nil: nobody asks.
	Left func(pid int)

	// Joined and Ended are called for every session, in this order; nil: nobody asks.
	Joined func(loop.Identity)
	Ended  func(who loop.Identity, why string)
	// Removed is called after Ended, when nothing more is measured, with all that the program used; nil:
	// nobody asks.
	Removed func(who loop.Identity, totals []loop.GPUTotal, requests loop.Counts)

	MaxSessions, MaxSessionsPerUID int // 0: 4096 and 1024

	Budget *budget.Budget // of the CPU time for each account; nil: no limits

	// Terms returns what the configuration gives to a process; nil: nothing.
	Terms func(loop.Identity) loop.Terms
	// Kept returns what control clients set for a process under a previous daemon; nil: nothing.
	Kept func(loop.Identity) loop.Kept

	// Peer reads the credentials of a connection; nil: from the kernel. Tests replace it to
	// simulate several processes and users.
	Peer func(*net.UnixConn) (identity.Peer, error)
	// Glance returns whom a connection is charged to, and Nice the nice value of a process; nil: as the
	// kernel says.
	Glance func(uid, pid int) identity.User
	Nice   func(pid int) int

	// Health gets the server's parts; nil: nobody asks.
	Health *health.Monitor
}

// Server owns the sessions.
type Server struct {
	cfg     Config
	log     *slog.Logger
	metrics *driver.Metrics
	reaper  *reaper
	// listener is nil without clients.
	listener *quarantine.Listener
	owner    identity.User // whom the daemon runs as
	loop     *loop.Loop
	parts    parts

	ctx    context.Context
	cancel context.CancelFunc
	door   budget.Places // of connections before their HELLO, by identity.Glance
	wg     sync.WaitGroup
	nextID atomic.Uint64
	total  atomic.Uint64

	mu       sync.Mutex
	closing  bool
	sessions map[model.SessionID]*Session
	perUser  map[identity.User]int // by identity.User.Account
	pending  map[identity.User]int // connections without HELLO
	refused  map[string]uint64
	logged   map[refusedPID]struct{} // refusals in the log
}

// refusedPID is a process and the name of its refusal.
type refusedPID struct {
	pid  int
	name string
}

// MaxSessions and MaxSessionsPerUID are the default limits of clients.
const (
	MaxSessions       = 4096
	MaxSessionsPerUID = 1024
)

// maxClosing is how many connections of an account may wait to be closed. All its sessions may end at
// the same time.
const maxClosing = MaxSessionsPerUID

// maxLogged bounds Server.logged. A library that is refused tries again every two seconds.
const maxLogged = 4096

// New starts a server that accepts clients.
func New(cfg Config) (*Server, error) {
	cfg.MaxSessions, cfg.MaxSessionsPerUID = cmp.Or(cfg.MaxSessions, MaxSessions), cmp.Or(cfg.MaxSessionsPerUID, MaxSessionsPerUID)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Peer == nil {
		cfg.Peer = peer
	}
	if cfg.Glance == nil {
		cfg.Glance = identity.Glance
	}
	if cfg.Nice == nil {
		cfg.Nice = niceOf
	}
	if cfg.Metrics == nil {
		cfg.Metrics = &driver.Metrics{}
	}
	if cfg.Terms == nil {
		cfg.Terms = func(loop.Identity) loop.Terms { return loop.Terms{} }
	}
	if cfg.Kept == nil {
		cfg.Kept = func(loop.Identity) loop.Kept { return loop.Kept{} }
	}
	if cfg.NewHardware == nil {
		cfg.NewHardware = func(driver.SessionOptions) driver.Session { return driver.Combine("no driver") }
	}
	parts := addParts(cfg.Health)
	r, err := newReaper(parts.reaper)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := &Server{
		cfg: cfg, log: cfg.Log, owner: identity.OnHost(os.Geteuid()), metrics: cfg.Metrics, reaper: r, loop: cfg.Loop, parts: parts,
		ctx: ctx, cancel: cancel, door: budget.Places{All: helloAll, Each: helloPerUID},
		sessions: map[model.SessionID]*Session{}, perUser: map[identity.User]int{}, pending: map[identity.User]int{}, refused: map[string]uint64{}, logged: map[refusedPID]struct{}{},
	}
	if cfg.Listener != nil {
		if srv.listener, err = quarantine.Listen(cfg.Listener); err != nil {
			cancel()
			return nil, err
		}
		srv.wg.Go(srv.accept)
	}
	srv.wg.Go(srv.watchNice)
	go quarantine.Watch(ctx, parts.quarantine.Beat) // nobody waits for its end: a process that hangs delays it
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
	if srv.listener != nil {
		_ = srv.listener.Close()
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
	srv.await()
}

// stopTime limits the wait for goroutines, each of which may read files of a process that has stopped.
const stopTime = 500 * time.Millisecond

// await waits for the goroutines of connections, which hold no lock and no place any more.
func (srv *Server) await() {
	done := make(chan struct{})
	go func() {
		srv.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(stopTime):
		srv.log.Warn("a connection did not end in time")
	}
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

// left reports a process that may continue without a session, except when all sessions end.
func (srv *Server) left(pid int) {
	srv.mu.Lock()
	closing := srv.closing
	srv.mu.Unlock()
	if srv.cfg.Left != nil && !closing {
		srv.cfg.Left(pid)
	}
}

// Sessions returns the number of sessions. It works while the loop is blocked.
func (srv *Server) Sessions() int { return srv.count() }

func (srv *Server) count() int {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	return len(srv.sessions)
}

func errStopping() *refusal { return &refusal{"stopping", "the daemon is stopping"} }

// reserve reserves a place for a session, or returns why there is none.
func (srv *Server) reserve(user identity.User) *refusal {
	user = user.Account()
	srv.mu.Lock()
	defer srv.mu.Unlock()
	switch {
	case srv.closing:
		return errStopping()
	case len(srv.sessions) >= srv.cfg.MaxSessions:
		return &refusal{"full", fmt.Sprintf("client limit reached (%d)", srv.cfg.MaxSessions)}
	case srv.perUser[user] >= srv.cfg.MaxSessionsPerUID, srv.crowded(user):
		return &refusal{"full_uid", fmt.Sprintf("client limit of %v reached (%d)", user, srv.perUser[user])}
	case quarantine.Closing(user.Key()) >= maxClosing:
		return &refusal{"full_closing", fmt.Sprintf("%d connections of %v can't be closed: they carry descriptors that block", maxClosing, user)}
	case srv.pending[user] >= helloPerUID:
		return &refusal{"full_hello", fmt.Sprintf("too many connections of %v have not sent HELLO (%d)", user, helloPerUID)}
	}
	srv.perUser[user]++
	return nil
}

// crowded reports whether a user has as many sessions as are free. Whatever number of users take as
// many as they can, each finds places, and so does the next one.
// Preconditions: srv.mu is held, and user is an account.
func (srv *Server) crowded(user identity.User) bool {
	return !user.Root() && user != srv.owner && srv.perUser[user] >= srv.cfg.MaxSessions-len(srv.sessions)
}

func (srv *Server) unreserve(user identity.User) {
	user = user.Account()
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if srv.perUser[user]--; srv.perUser[user] <= 0 {
		delete(srv.perUser, user)
	}
}

func (srv *Server) pend(user identity.User, n int) {
	user = user.Account()
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if srv.pending[user] += n; srv.pending[user] <= 0 {
		delete(srv.pending, user)
	}
}

// newSession creates the parts that every session has, and registers the session. o has the options
// that depend on the kind of session.
// Preconditions: the caller has reserved a place.
func (srv *Server) newSession(s *Session, o loop.ClientOptions) (memfd int, err error) {
	id := srv.nextID.Add(1)
	page, memfd, err := wire.NewPageVersion(id, s.version)
	if err != nil {
		return -1, err
	}
	s.ID, s.server, s.page = model.SessionID(id), srv, page
	own := page.Leases()
	if s.conn == nil {
		own = 0 // the guardian restores all devices of an attached process together
	}
	s.leases = driver.NewLeases(page, wire.HeartbeatLimitNS, own, func(i int, gpu model.DeviceID) driver.LeasePage {
		return page.DeviceLease(i, gpu)
	})
	s.workers = map[model.DeviceID]*driver.Worker{}
	o.Identity, o.Session, o.Page, o.Leases = s.Identity, s, page, s.leases
	o.Terms = srv.cfg.Terms(s.Identity)
	s.terms = o.Terms.Number
	if !s.Attached {
		o.Kept = srv.cfg.Kept(s.Identity)
	}
	s.client = srv.loop.NewClient(o)
	s.probe = make(chan struct{}, 1)
	s.closed = make(chan struct{})
	s.ctx, s.cancel = context.WithCancel(srv.ctx)
	srv.mu.Lock()
	var refused *refusal
	switch {
	case srv.closing: // HELLO arrived after Close had ended all sessions
		refused = errStopping()
	case srv.rivals(s):
		refused = &refusal{"two_sessions", "the process has a session already"}
	default:
		srv.sessions[s.ID] = s
	}
	srv.mu.Unlock()
	if refused != nil {
		s.cancel()
		srv.loop.Abandon(s.client)
		page.Release()
		_ = unix.Close(memfd)
		return -1, refused
	}
	srv.total.Add(1)
	if srv.cfg.Joined != nil {
		srv.cfg.Joined(s.Identity)
	}
	return memfd, nil
}

// join makes a session known to the loop. A configuration that was applied meanwhile has missed it.
func (srv *Server) join(ctx context.Context, s *Session, caps map[model.DeviceID]driver.Capability) error {
	if err := srv.loop.Join(ctx, s.client, caps); err != nil {
		return err
	}
	if terms := srv.cfg.Terms(s.Identity); terms.Number != s.terms {
		return srv.loop.SetTerms(ctx, s.client, terms)
	}
	return nil
}

// SetLimits changes the numbers of clients; 0 means the default. Sessions beyond the limit stay.
func (srv *Server) SetLimits(sessions, perUser int) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	srv.cfg.MaxSessions, srv.cfg.MaxSessionsPerUID = cmp.Or(sessions, MaxSessions), cmp.Or(perUser, MaxSessionsPerUID)
}

// rivals reports whether a process has an attached session in addition to a new one, or gets one in addition to
// another. The caller holds the lock.
func (srv *Server) rivals(s *Session) bool {
	for _, o := range srv.sessions {
		if o.PID == s.PID && (o.Attached || s.Attached) {
			return true
		}
	}
	return false
}

// remove removes an ended session from the loop and then releases its place.
func (srv *Server) remove(s *Session) {
	totals, requests := srv.loop.Remove(s.client)
	if srv.cfg.Removed != nil {
		srv.cfg.Removed(s.Identity, totals, requests)
	}
	srv.mu.Lock()
	delete(srv.sessions, s.ID)
	srv.mu.Unlock()
	srv.unreserve(s.User)
}

// countRefusal counts a refusal and reports whether it is the process's first of that name, which
// alone is logged.
func (srv *Server) countRefusal(name string, pid int) (first bool) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	srv.refused[name]++
	key := refusedPID{pid, name}
	if _, ok := srv.logged[key]; ok {
		return false
	}
	if len(srv.logged) >= maxLogged {
		clear(srv.logged)
	}
	srv.logged[key] = struct{}{}
	return true
}

// PIDs returns the processes that have a session. It works while the loop is blocked.
func (srv *Server) PIDs() map[int]bool {
	out := map[int]bool{}
	for _, s := range srv.all() {
		out[s.PID] = true
	}
	return out
}

// HostPID returns the process that has a PID in another PID namespace; 0: it has no session.
func (srv *Server) HostPID(namespace uint64, pid int) int {
	for _, s := range srv.all() {
		if s.PIDNamespace == namespace && s.LocalPID == pid {
			return s.PID
		}
	}
	return 0
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
