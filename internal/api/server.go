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
)

// Bounds on connections to a listener. Every user may connect to a root daemon; no user may use
// up its file descriptors.
const (
	maxConnections       = 256
	maxConnectionsPerUID = 64
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
	if errors.Is(err, http.ErrServerClosed) || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve %s: %w", what, err)
}

// peer is what a listener knows of a connection's other end.
type peer struct {
	control.Caller
	local bool  // on this machine
	err   error // why the uid is not known; UID is -1 then
}

type peerKey struct{}

// keepPeer makes the peer of a connection available to its requests.
func keepPeer(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(*peerConn); ok {
		return context.WithValue(ctx, peerKey{}, c.peer)
	}
	return ctx
}

// identifyPeer is the Identify of a unix socket.
func identifyPeer(r *http.Request) (control.Caller, error) {
	p, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		return control.Caller{}, refuse("the peer's credentials are not known")
	}
	return p.Caller, nil
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

	mu     sync.Mutex
	total  int
	perUID map[int]int
}

func newLimitListener(l net.Listener, identify func(net.Conn) (peer, error)) *limitListener {
	return &limitListener{Listener: l, identify: identify, perUID: map[int]int{}}
}

// Accept returns the next connection that is within the bounds; it closes others.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p, err := l.identify(conn)
		if err != nil || !l.take(p.UID) {
			_ = conn.Close()
			continue
		}
		return &peerConn{Conn: conn, peer: p, release: sync.OnceFunc(func() { l.give(p.UID) })}, nil
	}
}

func (l *limitListener) take(uid int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= maxConnections || l.perUID[uid] >= maxConnectionsPerUID {
		return false
	}
	l.total++
	l.perUID[uid]++
	return true
}

func (l *limitListener) give(uid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.perUID[uid]--; l.perUID[uid] == 0 {
		delete(l.perUID, uid)
	}
}

// unixPeer reads the peer credentials of a connection.
func unixPeer(conn net.Conn) (peer, error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return peer{}, errors.New("not a unix socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return peer{}, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); errors.Join(err, credErr) != nil {
		return peer{}, fmt.Errorf("read peer credentials: %w", errors.Join(err, credErr))
	}
	return peer{Caller: control.Caller{UID: int(cred.Uid), PID: int(cred.Pid)}, local: true}, nil
}
