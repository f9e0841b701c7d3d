// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
)

// Bounds on connections to a listener, which every user may open on a root
// daemon: one user can't use up the daemon's file descriptors.
const (
	maxConnections       = 256
	maxConnectionsPerUID = 64
)

// Serve offers a Control on a unix socket until ctx ends. Clients' mistakes go to log.
func Serve(ctx context.Context, l net.Listener, c control.Control, log *slog.Logger) error {
	events := newFeed(c)
	server := newServer(newMux(c, peer, events), events, log)
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if p, ok := conn.(*peerConn); ok {
			return context.WithValue(ctx, callerKey{}, p.caller)
		}
		return ctx
	}
	return serveUntil(ctx, server, &limitListener{Listener: l, limits: limits{perUID: map[int]int{}}}, "control socket")
}

// newServer has the bounds that every listener has.
func newServer(h http.Handler, events *feed, log *slog.Logger) *http.Server {
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      control.CallTimeout + 10*time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	server.RegisterOnShutdown(events.stop)
	return server
}

// serveUntil serves until ctx ends.
func serveUntil(ctx context.Context, server *http.Server, l net.Listener, what string) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		// Requests under way may finish: a CLI that asks while we stop gets its answer.
		grace, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(l)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve %s: %w", what, err)
}

type callerKey struct{}

// peer is the Identify of a unix socket.
func peer(r *http.Request) (control.Caller, error) {
	caller, ok := r.Context().Value(callerKey{}).(control.Caller)
	if !ok {
		return control.Caller{}, &control.Error{Kind: control.ErrNotAllowed, Cause: "the peer's credentials are not known"}
	}
	return caller, nil
}

// peerConn is a connection whose peer is known and counted.
type peerConn struct {
	net.Conn
	caller  control.Caller
	release func()
}

// Close also gives the place back.
func (c *peerConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// limitListener accepts unix connections within the bounds, with credentials.
type limitListener struct {
	net.Listener
	limits
}

// limits counts connections, in all and by user.
type limits struct {
	mu     sync.Mutex
	total  int
	perUID map[int]int
}

// Accept returns the next connection that is within the bounds; others are closed.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		caller, err := credentials(conn)
		if err != nil || !l.take(caller.UID) {
			_ = conn.Close()
			continue
		}
		release := sync.OnceFunc(func() { l.give(caller.UID) })
		return &peerConn{Conn: conn, caller: caller, release: release}, nil
	}
}

func (l *limits) take(uid int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= maxConnections || l.perUID[uid] >= maxConnectionsPerUID {
		return false
	}
	l.total++
	l.perUID[uid]++
	return true
}

func (l *limits) give(uid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.perUID[uid]--; l.perUID[uid] == 0 {
		delete(l.perUID, uid)
	}
}

// credentials asks the kernel who connected.
func credentials(conn net.Conn) (control.Caller, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return control.Caller{}, errors.New("not a socket")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return control.Caller{}, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return control.Caller{}, fmt.Errorf("read peer credentials: %w", err)
	}
	if credErr != nil {
		return control.Caller{}, fmt.Errorf("read peer credentials: %w", credErr)
	}
	return control.Caller{UID: int(cred.Uid), PID: int(cred.Pid)}, nil
}
