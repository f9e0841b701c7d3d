// SPDX-License-Identifier: Apache-2.0

package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"xsched/internal/control"
)

// guard decides who may talk to a TCP listener, and as whom.
//
// Within the machine the kernel says which user owns the other end, and a
// request that a web page could have made is refused: its Host must be a name
// of this machine's loopback (a name of the attacker's that leads here is none)
// and its Origin, if it has one, the same. From elsewhere only the token counts.
type guard struct {
	token *[sha256.Size]byte // nil: none is accepted
	owner int                // uid whose rights the token has
	host  string             // what the listener was bound to, when that is a name
}

func refuse(format string, args ...any) error {
	return &control.Error{Kind: control.ErrNotAllowed, Cause: fmt.Sprintf(format, args...)}
}

// errNoToken asks for a token.
var errNoToken = &control.Error{
	Kind: control.ErrNotAllowed, Cause: "a connection from another machine needs the token",
	Remedy: "send `Authorization: Bearer TOKEN` with what --http-token-file names",
}

// identify is the guard's Identify; the connection's own caller was found when it was accepted.
func (g *guard) identify(r *http.Request) (control.Caller, error) {
	if authorization := r.Header.Get("Authorization"); authorization != "" {
		return g.byToken(authorization)
	}
	peer, _ := r.Context().Value(tcpPeerKey{}).(*tcpPeer)
	switch {
	case peer == nil:
		return control.Caller{}, refuse("the peer is not known")
	case !peer.local:
		return control.Caller{}, errNoToken
	case peer.err != nil:
		return control.Caller{}, refuse("who is at the other end can't be told: %v", peer.err)
	}
	return control.Caller{UID: peer.uid}, nil
}

func (g *guard) byToken(authorization string) (control.Caller, error) {
	scheme, token, _ := strings.Cut(authorization, " ")
	if g.token == nil {
		return control.Caller{}, refuse("this daemon has no token; leave out the Authorization header")
	}
	// Hashes of equal length: how long the comparison takes says nothing.
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(sum[:], g.token[:]) != 1 {
		return control.Caller{}, refuse("the token is wrong")
	}
	return control.Caller{UID: g.owner}, nil
}

// wrap refuses what comes from a web page of somebody else's.
func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if err := g.check(r); err != nil {
			writeError(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (g *guard) check(r *http.Request) error {
	withToken := g.token != nil && r.Header.Get("Authorization") != ""
	// A page of another site can't know the token, so that any name will do then.
	if !withToken && !g.knownHost(r.Host) && r.URL.Path != "/healthz" {
		return refuse("host %q is not this machine's loopback", r.Host)
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return refuse("origin %q is another site", origin)
		}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
	default:
		return refuse("a request from another site (%s)", site)
	}
	return nil
}

// knownHost says whether a Host header names the loopback.
func (g *guard) knownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	if strings.EqualFold(name, "localhost") || g.host != "" && strings.EqualFold(name, g.host) {
		return true
	}
	a, err := netip.ParseAddr(name)
	return err == nil && a.Unmap().IsLoopback()
}

// Bounds of a token file.
const (
	minTokenBytes = 16
	maxTokenBytes = 4096
)

// readToken reads the file of --http-token-file; others must not be able to read it.
func readToken(path string) (*[sha256.Size]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, &control.Error{
			Kind: control.ErrInvalid, Cause: fmt.Sprintf("token file %s can be read by others (mode %04o)", path, info.Mode().Perm()),
			Remedy: "chmod 600 " + path,
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < minTokenBytes || len(token) > maxTokenBytes {
		return nil, &control.Error{
			Kind: control.ErrInvalid, Cause: fmt.Sprintf("the token in %s has %d characters", path, len(token)),
			Remedy: fmt.Sprintf("use at least %d, for example from `openssl rand -hex 32`", minTokenBytes),
		}
	}
	sum := sha256.Sum256([]byte(token))
	return &sum, nil
}
