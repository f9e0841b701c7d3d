// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/quarantine"
)

// Bounds on connections to a listener. Every user may connect to a root daemon; no user may use
// up its file descriptors, and none may have more than are free, so that others find places.
const (
	maxConnections        = 256
	maxConnectionsPerUser = 64
)

// Serve offers a Control on a unix socket until ctx ends. Clients' mistakes go to log.
func Serve(ctx context.Context, l net.Listener, c control.Control, log *slog.Logger) error {
	if u, ok := l.(*net.UnixListener); ok {
		l = quarantine.Listen(u) // a stranger can send descriptors to a unix socket
	}
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
	counted       bool  // by the listener
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

// peerConn is a connection whose peer is counted, and known from the first Read on.
type peerConn struct {
	net.Conn
	listener *limitListener
	peer     peer

	once  sync.Once
	err   error // of the first Read: why the connection is refused
	close sync.Once
}

// Read identifies the peer first, in the connection's own goroutine: that may take as long as the
// machine has connections, and must not delay others.
func (c *peerConn) Read(b []byte) (int, error) {
	c.once.Do(func() { c.err = c.listener.admit(c) })
	if c.err != nil {
		return 0, io.EOF // the server then closes the connection without a reply
	}
	return c.Conn.Read(b)
}

// Close also releases the connection's place.
func (c *peerConn) Close() error {
	err := c.Conn.Close() // ends a Read that waits
	c.close.Do(func() {
		c.once.Do(func() { c.err = net.ErrClosed }) // it was never read, or the first Read has ended
		c.listener.give(c)
		c.peer.close()
	})
	return err
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

// Accept returns the next connection within the bounds of all users; it closes others.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		full := l.total >= maxConnections
		if !full {
			l.total++
		}
		l.mu.Unlock()
		if !full {
			return &peerConn{Conn: conn, listener: l}, nil
		}
		limits.connections.Add(1)
		_ = conn.Close()
	}
}

// errCrowded refuses a connection beyond the bounds of its user.
var errCrowded = errors.New("too many connections of this user")

// admit identifies the peer of a new connection and counts it.
func (l *limitListener) admit(c *peerConn) error {
	p, err := l.identify(c.Conn)
	if err != nil {
		limits.connections.Add(1)
		return err
	}
	user := p.User.Account()
	l.mu.Lock()
	defer l.mu.Unlock()
	free := maxConnections - l.total
	if l.perUser[user] >= maxConnectionsPerUser || !user.Root() && l.perUser[user] > free {
		limits.connections.Add(1)
		p.close()
		return errCrowded
	}
	l.perUser[user]++
	c.peer = p
	c.peer.counted = true
	return nil
}

func (l *limitListener) give(c *peerConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if !c.peer.counted {
		return
	}
	user := c.peer.User.Account()
	if l.perUser[user]--; l.perUser[user] == 0 {
		delete(l.perUser, user)
	}
}

// unixPeer identifies the process of a connection.
func unixPeer(conn net.Conn) (peer, error) {
	c, ok := conn.(*quarantine.Conn)
	if !ok {
		return peer{}, errors.New("not a unix socket")
	}
	p, err := identity.OfConn(c.UnixConn)
	if err != nil {
		return peer{}, err
	}
	c.Charge(p.User.Account().Key())
	return peer{Peer: p, local: true}, nil
}
