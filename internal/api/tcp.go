// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"xsched/internal/budget"
	"xsched/internal/control"
	"xsched/internal/health"
)

// DefaultHTTP is the default address of `xsched serve`.
const DefaultHTTP = "127.0.0.1:50000"

// HTTPOptions configure the HTTP listener.
type HTTPOptions struct {
	Addr string // host:port
	// TokenFile holds the bearer token; needed when Addr is not a loopback address.
	TokenFile string
	// ViewTokenFile holds a token that only allows reading.
	ViewTokenFile string
	// InPod says that the daemon runs in a pod of Kubernetes. A port that somebody forwards to a pod ends at its
	// loopback interface, as a process of the node's root: the kernel's word for the user proves nothing.
	InPod bool
	// Pages serves the dashboard at "/" and under "/assets/"; nil: none. Everybody may read it.
	Pages  http.Handler
	Log    *slog.Logger
	Budget *budget.Budget  // of the CPU time for each account; nil: no limits
	Health *health.Monitor // gets the parts of the listener; nil: none
}

// HTTPServer is a bound TCP listener.
type HTTPServer struct {
	listener net.Listener
	guard    *guard
	pages    http.Handler
	log      *slog.Logger
	budget   *budget.Budget
}

// ListenHTTP binds the address.
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
	g := &guard{owner: os.Geteuid(), inPod: o.InPod}
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
	if o.ViewTokenFile != "" {
		if g.view, err = readToken(o.ViewTokenFile); err != nil {
			return nil, err
		}
	}
	if g.token != nil && g.view != nil && *g.token == *g.view {
		return nil, invalid("use another token in --http-view-token-file", "viewers would have the token that allows changes")
	}
	if !loopback && !g.hasToken() {
		return nil, invalid("add --http-token-file FILE, or use --http "+net.JoinHostPort("127.0.0.1", port),
			"--http %s is reachable from other machines, and no token is set", o.Addr)
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
			Kind: control.ErrNotAllowed, Cause: fmt.Sprintf("no permission to bind port %s", port),
			Remedy: "use one above 1023 with --http HOST:PORT, or none with --http off",
		}
	case err != nil:
		return nil, invalid("use another with --http HOST:PORT, or none with --http off", "listen on %s: %v", o.Addr, err)
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &HTTPServer{listener: newLimitListener(tcpDoor{l}, o.Budget, addParts(o.Health, "the HTTP port")), guard: g, pages: o.Pages, log: log, budget: o.Budget}, nil
}

// resolve returns the addresses of a host; an empty host means all interfaces.
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
		// IPv4 first, because upstream's tools support no other.
		if a = a.Unmap(); a.Is4() {
			out = append([]netip.Addr{a}, out...)
		} else {
			out = append(out, a)
		}
	}
	return out, nil
}

// Addr is the bound address.
func (s *HTTPServer) Addr() string { return s.listener.Addr().String() }

// Close releases the port if Serve is not called.
func (s *HTTPServer) Close() error { return s.listener.Close() }

// Serve serves c until ctx ends.
func (s *HTTPServer) Serve(ctx context.Context, c control.Control) error {
	events := newFeed(c)
	server := newServer(withPages(s.pages, s.guard.wrap(newMux(c, s.guard.identify, events, s.budget))), events, s.log)
	return serveUntil(ctx, server, s.listener, "HTTP")
}

// withPages serves the dashboard before the guard: a browser can't send the token when it opens the
// page, and links from other sites lead here. The page has no data; its requests pass the guard.
func withPages(pages, next http.Handler) http.Handler {
	if pages == nil {
		return next
	}
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", pages)
	mux.Handle("GET /assets/", pages)
	mux.Handle("/", next)
	return mux
}
