// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"

	"xsched/internal/control"
)

// DefaultHTTP is where `serve` listens unless told otherwise.
const DefaultHTTP = "127.0.0.1:50000"

// HTTPOptions say where the HTTP interface is offered, and to whom.
type HTTPOptions struct {
	Addr string // host:port
	// TokenFile holds the bearer token; needed when Addr is not a loopback address.
	TokenFile string
	Log       *slog.Logger
}

// HTTPServer is a bound TCP listener.
type HTTPServer struct {
	listener *tcpListener
	guard    *guard
	log      *slog.Logger
}

// ListenHTTP binds the address, or says why that can't be.
func ListenHTTP(o HTTPOptions) (*HTTPServer, error) {
	invalid := func(remedy, format string, args ...any) error {
		return &control.Error{Kind: control.ErrInvalid, Cause: fmt.Sprintf(format, args...), Remedy: remedy}
	}
	host, port, err := net.SplitHostPort(o.Addr)
	if n, portErr := strconv.Atoi(port); err != nil || portErr != nil || n < 0 || n > 65535 {
		return nil, invalid("use --http HOST:PORT, for example "+DefaultHTTP+", or --http off", "HTTP address %q is not host:port", o.Addr)
	}
	addresses, err := resolve(host)
	if err != nil {
		return nil, invalid("use --http with an address of this machine", "HTTP address %q: %v", o.Addr, err)
	}
	g := &guard{owner: os.Geteuid()}
	loopback := true
	for _, a := range addresses {
		loopback = loopback && a.IsLoopback()
	}
	if _, err := netip.ParseAddr(host); err != nil && loopback {
		g.host = host
	}
	if o.TokenFile != "" {
		if g.token, err = readToken(o.TokenFile); err != nil {
			return nil, err
		}
	}
	if !loopback && g.token == nil {
		return nil, invalid("add --http-token-file FILE, or use --http "+net.JoinHostPort("127.0.0.1", port),
			"--http %s can be reached from other machines, and no token is set", o.Addr)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(addresses[0].String(), port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, &control.Error{
			Kind: control.ErrUnavailable, Cause: fmt.Sprintf("port %s on %s is in use by another program", port, addresses[0]),
			Remedy: "use another with --http HOST:PORT, or none with --http off",
		}
	case errors.Is(err, syscall.EACCES):
		return nil, &control.Error{
			Kind: control.ErrNotAllowed, Cause: fmt.Sprintf("port %s needs rights this user has not", port),
			Remedy: "use one above 1023 with --http HOST:PORT, or none with --http off",
		}
	case err != nil:
		return nil, invalid("use another with --http HOST:PORT, or none with --http off", "listen on %s: %v", o.Addr, err)
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &HTTPServer{listener: &tcpListener{Listener: l, limits: limits{perUID: map[int]int{}}}, guard: g, log: log}, nil
}

// resolve returns the addresses of a host to bind; none given means all.
func resolve(host string) ([]netip.Addr, error) {
	if host == "" {
		return []netip.Addr{netip.IPv6Unspecified()}, nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	found, err := net.LookupHost(host)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, f := range found {
		a, err := netip.ParseAddr(f)
		if err != nil {
			return nil, err
		}
		// IPv4 first: XSched's tools know no other.
		if a = a.Unmap(); a.Is4() {
			out = append([]netip.Addr{a}, out...)
		} else {
			out = append(out, a)
		}
	}
	return out, nil
}

// Addr is where it listens.
func (s *HTTPServer) Addr() string { return s.listener.Addr().String() }

// Close gives the port back; only needed when Serve is not called.
func (s *HTTPServer) Close() error { return s.listener.Close() }

// Serve offers c until ctx ends.
func (s *HTTPServer) Serve(ctx context.Context, c control.Control) error {
	events := newFeed(c)
	server := newServer(s.guard.wrap(newMux(c, s.guard.identify, events)), events, s.log)
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if t, ok := conn.(*tcpConn); ok {
			return context.WithValue(ctx, tcpPeerKey{}, t.peer)
		}
		return ctx
	}
	return serveUntil(ctx, server, s.listener, "HTTP")
}

type tcpPeerKey struct{}

// tcpPeer is what is known about the other end of a connection.
type tcpPeer struct {
	local bool // on this machine's loopback
	uid   int
	err   error // why the uid is not known
}

type tcpConn struct {
	net.Conn
	peer    *tcpPeer
	release func()
}

// Close also gives the place back.
func (c *tcpConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// tcpListener accepts connections within the bounds and finds who is behind them.
type tcpListener struct {
	net.Listener
	limits
}

// Accept returns the next connection that is within the bounds; others are closed.
func (l *tcpListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer := findPeer(conn)
		// Those whose uid is not known, as all from other machines, share the places of one.
		if !l.take(peer.uid) {
			_ = conn.Close()
			continue
		}
		release := sync.OnceFunc(func() { l.give(peer.uid) })
		return &tcpConn{Conn: conn, peer: peer, release: release}, nil
	}
}

// findPeer asks once, when the connection is new: it can't change hands later.
func findPeer(conn net.Conn) *tcpPeer {
	local, localOK := conn.LocalAddr().(*net.TCPAddr)
	remote, remoteOK := conn.RemoteAddr().(*net.TCPAddr)
	if !localOK || !remoteOK {
		return &tcpPeer{uid: -1}
	}
	from, to := remote.AddrPort(), local.AddrPort()
	if !from.Addr().Unmap().IsLoopback() || !to.Addr().Unmap().IsLoopback() {
		return &tcpPeer{uid: -1}
	}
	uid, err := socketOwner(to, from)
	if err != nil {
		uid = -1
	}
	return &tcpPeer{local: true, uid: uid, err: err}
}
