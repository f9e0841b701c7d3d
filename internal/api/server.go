// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/budget"
	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/identity"
	"xsched/internal/quarantine"
)

// Options configure a control socket.
type Options struct {
	Log    *slog.Logger    // gets clients' mistakes
	Budget *budget.Budget  // of the CPU time for each account; nil: no limits
	Health *health.Monitor // gets the parts of the listener; nil: none
}

// Serve offers a Control on a unix socket until ctx ends.
func Serve(ctx context.Context, l net.Listener, c control.Control, o Options) error {
	kept, err := quarantine.Listen(l) // a stranger can send descriptors to a unix socket
	if err != nil {
		return fmt.Errorf("serve control socket: %w", err)
	}
	events := newFeed(c)
	server := newServer(newMux(c, identifyPeer, events, o.Budget), events, o.Log)
	return serveUntil(ctx, server, newLimitListener(&unixDoor{Listener: kept}, o.Budget, addParts(o.Health, filepath.Base(l.Addr().String()))), "control socket")
}

// newServer returns a server with the limits that all listeners share.
func newServer(h http.Handler, events *feed, log *slog.Logger) *http.Server {
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      control.CallTimeout + 10*time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ConnContext:       keepPeer,
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
		// Requests under way may finish, so that a CLI call during shutdown gets its reply.
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
	// The owner of the listener may close it before the end of ctx has arrived here.
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve %s: %w", what, err)
}

// peer is what a listener knows of a connection's other end.
type peer struct {
	identity.Peer       // PIDFD is -1 for TCP
	local         bool  // on this machine
	err           error // why the user is not known; User is Nobody then
	// resolve completes the identity at the first request; nil: it is complete.
	resolve func() (identity.Peer, error)
}

// caller returns the caller of a request.
func (p *peer) caller() (control.Caller, error) {
	if p.resolve != nil {
		who, err := p.resolve()
		return control.CallerOf(who), err
	}
	c := control.CallerOf(p.Peer)
	if !identity.Alive(p.PIDFD) {
		c.PID = 0 // another process inherited the connection, and the number may be reused
	}
	return c, nil
}

func (p *peer) close() {
	if p.PIDFD > 0 {
		_ = unix.Close(p.PIDFD)
	}
}

type peerKey struct{}

// keepPeer makes the peer of a connection available to its requests.
func keepPeer(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(*peerConn); ok {
		return context.WithValue(ctx, peerKey{}, &c.peer)
	}
	return ctx
}

// identifyPeer is the Identify of a unix socket.
func identifyPeer(r *http.Request) (control.Caller, error) {
	p, ok := r.Context().Value(peerKey{}).(*peer)
	if !ok {
		return control.Nobody, refuse("the peer's credentials are not known")
	}
	if p.err != nil {
		return control.Nobody, &control.Error{
			Kind: control.ErrNotAllowed, Cause: p.err.Error(), Remedy: "run it in the daemon's PID namespace (nsenter --pid), or the daemon in that of the host",
		}
	}
	return p.caller()
}
