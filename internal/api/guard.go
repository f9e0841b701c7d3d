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
	"syscall"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// guard authenticates requests to a TCP listener.
//
// For loopback connections the kernel names the user at the other end. The guard rejects requests
// that a web page could have made: Host must be a loopback name, which defeats DNS rebinding, and
// Origin, if present, must equal it. Requests from other machines need the token.
type guard struct {
	inPod bool               // loopback connections prove no user
	token *[sha256.Size]byte // nil: none is accepted
	view  *[sha256.Size]byte // of viewers, which may only read; nil: none is accepted
	owner int                // uid that the tokens act as
	host  string             // the bound host, if it is a name
}

func refuse(format string, args ...any) error {
	return &control.Error{Kind: control.ErrNotAllowed, Cause: fmt.Sprintf(format, args...)}
}

// errNoToken is the refusal of a remote request without a token.
var errNoToken = &control.Error{
	Kind: control.ErrNotAllowed, Cause: "a request from another machine needs the token",
	Remedy: "send `Authorization: Bearer TOKEN` with the content of --http-token-file",
}

// errForwarded is the refusal of a request without a token in a pod.
var errForwarded = &control.Error{
	Kind: control.ErrNotAllowed, Cause: "in a pod a request over TCP needs a token, because a forwarded port looks like a local user",
	Remedy: "use the control socket, or send `Authorization: Bearer TOKEN` with the content of --http-token-file",
}

// errViewer is the refusal of a change with the token of viewers.
var errViewer = &control.Error{
	Kind: control.ErrNotAllowed, Cause: "this token only allows reading",
	Remedy: "use the token of --http-token-file for changes",
}

// identify implements Identify.
func (g *guard) identify(r *http.Request) (control.Caller, error) {
	if authorization := r.Header.Get("Authorization"); authorization != "" {
		return g.byToken(authorization, r.Method)
	}
	p, ok := r.Context().Value(peerKey{}).(*peer)
	switch {
	case !ok:
		return control.Nobody, refuse("the user of this connection is not known")
	case !p.local:
		return control.Nobody, errNoToken
	case g.inPod:
		return control.Nobody, errForwarded
	case p.err != nil:
		return control.Nobody, refuse("the user of this connection is not known: %v", p.err)
	}
	c, err := p.caller()
	if err != nil {
		return control.Nobody, &control.Error{
			Kind: control.ErrNotAllowed, Cause: fmt.Sprintf("the program of this connection was not found: %v", err), Remedy: "try again, or use the control socket",
		}
	}
	return c, nil
}

// hasToken reports whether any token is accepted.
func (g *guard) hasToken() bool { return g.token != nil || g.view != nil }

// byToken identifies the holder of a token. Viewers read what the daemon's user may read.
func (g *guard) byToken(authorization, method string) (control.Caller, error) {
	if !g.hasToken() {
		return control.Nobody, refuse("this daemon has no token; leave out the Authorization header")
	}
	scheme, token, _ := strings.Cut(authorization, " ")
	// Hashes of equal length keep the comparison time constant.
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	is := func(known *[sha256.Size]byte) bool {
		return known != nil && strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(sum[:], known[:]) == 1
	}
	owner := control.Caller{User: identity.OnHost(g.owner)}
	switch {
	case is(g.token):
		return owner, nil
	case !is(g.view):
		return control.Nobody, refuse("the token is wrong")
	case method != http.MethodGet && method != http.MethodHead:
		return control.Nobody, errViewer
	}
	return owner, nil
}

// wrap rejects cross-site requests.
func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if g.hasToken() {
			w.Header().Set("WWW-Authenticate", "Bearer") // the dashboard asks for a token only if there is one
		}
		if err := g.check(r); err != nil {
			writeError(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (g *guard) check(r *http.Request) error {
	withToken := g.hasToken() && r.Header.Get("Authorization") != ""
	// Another site can't know the token, so a request with it may use any name.
	if !withToken && !g.knownHost(r.Host) && r.URL.Path != "/healthz" {
		return refuse("host %q is not a loopback name of this machine", r.Host)
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return refuse("cross-site request from origin %q", origin)
		}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
	default:
		return refuse("cross-site request (Sec-Fetch-Site: %s)", site)
	}
	return nil
}

// knownHost reports whether a Host header names the loopback interface.
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

// readToken reads the file of a token for its hash.
func readToken(path string) (*[sha256.Size]byte, error) {
	token, err := ReadToken(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(token))
	return &sum, nil
}

// ReadToken reads the file of a token, which only its owner may read.
func ReadToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", &control.Error{
			Kind: control.ErrNotAllowed, Cause: fmt.Sprintf("other users can read token file %s (mode %04o)", path, info.Mode().Perm()),
			Remedy: "chmod 600 " + path,
		}
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return "", &control.Error{
			Kind: control.ErrNotAllowed, Cause: fmt.Sprintf("token file %s belongs to uid %d, who can replace the token", path, st.Uid),
			Remedy: fmt.Sprintf("chown %d %s", os.Geteuid(), path),
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < minTokenBytes || len(token) > maxTokenBytes {
		return "", &control.Error{
			Kind: control.ErrInvalid, Cause: fmt.Sprintf("the token in %s has %d characters", path, len(token)),
			Remedy: fmt.Sprintf("use at least %d, for example from `openssl rand -hex 32`", minTokenBytes),
		}
	}
	return token, nil
}
