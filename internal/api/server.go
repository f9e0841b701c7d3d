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
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// Bounds on connections to a listener. Every user may connect to a root daemon; no user may use
// up its file descriptors, and none may have more than are free, so that others find places.
const (
	maxConnections        = 256
	maxConnectionsPerUser = 64
)

// Serve offers a Control on a unix socket until ctx ends. Clients' mistakes go to log.
func Serve(ctx context.Context, l net.Listener, c control.Control, log *slog.Logger) error {
	events := newFeed(c)
	server := newServer(newMux(c, identifyPeer, events), events, log)
	return serveUntil(ctx, server, newLimitListener(l, unixPeer), "control socket")
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
	return p.caller()
}

// peerConn is a connection whose peer is known and counted.
type peerConn struct {
	net.Conn
	peer    peer
	release func()
}

// Close also releases the connection's place.
func (c *peerConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// limitListener accepts connections within the bounds, in all and by user.
type limitListener struct {
	net.Listener
	// identify runs once, when the connection is new: it can't change hands later.
	identify func(net.Conn) (peer, error)

	mu      sync.Mutex
	total   int
	perUser map[identity.User]int // by identity.User.Account
}

func newLimitListener(l net.Listener, identify func(net.Conn) (peer, error)) *limitListener {
	return &limitListener{Listener: l, identify: identify, perUser: map[identity.User]int{}}
}

// Accept returns the next connection that is within the bounds; it closes others.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p, err := l.identify(conn)
		if err != nil || !l.take(p.User) {
			limits.connections.Add(1)
			p.close()
			_ = conn.Close()
			continue
		}
		return &peerConn{Conn: conn, peer: p, release: sync.OnceFunc(func() {
			l.give(p.User)
			p.close()
		})}, nil
	}
}

func (l *limitListener) take(user identity.User) bool {
	user = user.Account()
	l.mu.Lock()
	defer l.mu.Unlock()
	free := maxConnections - l.total
	if free <= 0 || l.perUser[user] >= maxConnectionsPerUser || !user.Root() && l.perUser[user] >= free {
		return false
	}
	l.total++
	l.perUser[user]++
	return true
}

func (l *limitListener) give(user identity.User) {
	user = user.Account()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.perUser[user]--; l.perUser[user] == 0 {
		delete(l.perUser, user)
	}
}

// unixPeer identifies the process of a connection.
func unixPeer(conn net.Conn) (peer, error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return peer{}, errors.New("not a unix socket")
	}
	p, err := identity.OfConn(c)
	if err != nil {
		return peer{}, err
	}
	return peer{Peer: p, local: true}, nil
}
