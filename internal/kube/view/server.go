// SPDX-License-Identifier: Apache-2.0

// Package view shows a node's tenants to viewers: users who may look and do nothing else. The node plugin
// serves it on the loopback interface of its pod, and the API server forwards connections to it. A request
// carries a token for this purpose alone. The API server says whose it is (TokenReview) and whether that user
// may get the view of this node (SubjectAccessReview). No request changes anything.
package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"xsched/internal/control"
	"xsched/internal/top"
)

// Paths of the view. Answers are JSON, one value per line.
const (
	SnapshotPath = "/v1/snapshot" // control.Snapshot; a stream with ?interval=
	StatusPath   = "/v1/status"   // top.Status
	JournalPath  = "/v1/journal"  // control.JournalEntry; ?kind= and ?since_ns= select, ?follow=true continues
)

// Failure is an answer, or the last line of a stream, that has an error.
type Failure struct {
	Error string `json:"error"`
}

const (
	// answerLimit is above the time in which a daemon answers, and below the patience of `kubectl xsched`.
	answerLimit = 8 * time.Second
	// writeLimit bounds one write: a viewer that does not read loses its stream.
	writeLimit = 10 * time.Second
	// longestStream bounds a stream. The client opens another one, with a new token.
	longestStream = 5 * time.Minute
)

// Daemon is the part of the daemon's control interface that the view uses. None of it changes anything.
type Daemon interface {
	Version(ctx context.Context) (control.Version, error)
	List(ctx context.Context) (control.List, error)
	Devices(ctx context.Context) (control.Devices, error)
	Stats(ctx context.Context) (control.Stats, error)
	Journal(ctx context.Context, r control.JournalRequest) (control.Journal, error)
	Events(ctx context.Context, r control.EventsRequest, f func(name string, data []byte) error) error
}

// Server is the view of one node.
type Server struct {
	daemon    Daemon
	access    *access
	limits    limits
	snapshots snapshots
	log       *slog.Logger
	version   string
}

// New returns the view of a node. version is that of this program.
func New(node, version string, daemon Daemon, client kubernetes.Interface, log *slog.Logger) *Server {
	s := &Server{daemon: daemon, access: newAccess(node, client), log: log, version: version}
	s.snapshots.read = s.snapshot
	return s
}

// Listen binds a port of the loopback interface.
func Listen(port int) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
	if err != nil {
		return nil, fmt.Errorf("listen for viewers: %w", err)
	}
	return newPlaces(l, maxConnections), nil
}

// Serve answers until the context ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 10 * time.Second, MaxHeaderBytes: 2 * maxToken,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve viewers: %w", err)
	}
	return nil
}

// ServeHTTP answers one request. Whoever has no right learns nothing, not even which paths exist.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // the library would wait for the body
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Cache-Control", "no-store")
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		token = ""
	}
	who, err := s.access.check(r.Context(), token)
	if err != nil {
		s.refuse(w, err)
		return
	}
	end, ok := s.limits.begin(who, time.Now())
	if !ok {
		s.refuse(w, errBusy)
		return
	}
	defer end()
	answer := map[string]func(context.Context, *stream, *http.Request) error{
		SnapshotPath: s.serveSnapshot, StatusPath: s.serveStatus, JournalPath: s.serveJournal,
	}[r.URL.Path]
	switch {
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", http.MethodGet)
		fail(w, http.StatusMethodNotAllowed, errors.New("a view changes nothing; use GET"))
		return
	case answer == nil:
		fail(w, http.StatusNotFound, fmt.Errorf("no view %q; update kubectl xsched", r.URL.Path))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), longestStream)
	defer cancel()
	out := &stream{w: w, still: func() error { _, err := s.access.check(ctx, token); return err }}
	if err := answer(ctx, out, r); err != nil && ctx.Err() == nil {
		out.fail(err)
	}
}

// refuse answers a request without a right, or one too many.
func (s *Server) refuse(w http.ResponseWriter, err error) {
	code := http.StatusUnauthorized
	switch {
	case errors.Is(err, errNoRight):
		code = http.StatusForbidden
	case errors.Is(err, errBusy):
		code = http.StatusTooManyRequests
		w.Header().Set("Retry-After", "1")
	case errors.Is(err, errNoAnswer):
		code = http.StatusServiceUnavailable
		s.log.Debug("a viewer was not reviewed", "err", err)
		err = errNoAnswer // the cause is for the administrator
	default:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	fail(w, code, err)
}

func fail(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(Failure{strings.Join(strings.Fields(err.Error()), " ")})
}

// serveSnapshot sends one snapshot, or one per interval.
func (s *Server) serveSnapshot(ctx context.Context, out *stream, r *http.Request) error {
	text := r.URL.Query().Get("interval")
	if text == "" {
		line, err := s.snapshots.get(ctx)
		if err != nil {
			return err
		}
		return out.send(line)
	}
	interval, err := time.ParseDuration(text)
	if err != nil || interval < ShortestInterval || interval > time.Minute {
		return badf("interval %q is not possible; use %s to 1m", text, ShortestInterval)
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		line, err := s.snapshots.get(ctx)
		if err != nil {
			return err
		}
		if err := out.send(line); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// snapshot asks the daemon what `xsched top` shows.
func (s *Server) snapshot(ctx context.Context) (control.Snapshot, error) {
	var out control.Snapshot
	var err error
	if out.Daemon, err = s.daemon.Version(ctx); err != nil {
		return out, err
	}
	if out.List, err = s.daemon.List(ctx); err != nil {
		return out, err
	}
	devices, err := s.daemon.Devices(ctx)
	out.Devices, out.Problems, out.TimeNS = devices.Devices, devices.Problems, time.Now().UnixNano()
	return out, err
}

// serveStatus sends what `xsched status` shows. Problems are part of it.
func (s *Server) serveStatus(ctx context.Context, out *stream, _ *http.Request) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	line, err := json.Marshal(s.status(ctx))
	if err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return out.send(line)
}

func (s *Server) status(ctx context.Context) top.Status {
	stats, err := s.daemon.Stats(ctx) // first: it answers when the engine hangs
	if err != nil {
		return top.Unreachable(err)
	}
	if dead := stats.Dead(); dead != "" {
		return top.Dead(dead)
	}
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		return top.Unreachable(err)
	}
	return top.Examine(&snapshot, &stats, s.version)
}
