// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"xsched/internal/budget"
	"xsched/internal/control"
	"xsched/internal/identity"
)

// turns lets each account make one reply to a read at a time: a list of 16,000 queues is 8 MB of JSON.
// Root and the daemon's user are not limited.
type turns struct {
	mu      sync.Mutex
	users   map[identity.User]*turn
	refused atomic.Uint64
}

// turn is one account's state.
type turn struct {
	free  chan struct{} // one token
	waits int           // requests that hold or await the token
}

// sharedLimits are the limits that all listeners of the daemon share.
type sharedLimits struct {
	reads       *turns
	connections atomic.Uint64 // refused
}

var limits = &sharedLimits{reads: newTurns()}

func (l *sharedLimits) refused() (connections, reads uint64) {
	return l.connections.Load(), l.reads.refused.Load()
}

func newTurns() *turns { return &turns{users: map[identity.User]*turn{}} }

var errTooMany = &control.Error{
	Kind: control.ErrUnavailable, Cause: "this user has too many requests under way",
	Remedy: "wait for the replies, or read the event stream at " + control.Prefix + eventsPath,
}

// begin waits for the account's turn. The caller calls end after the request.
func (t *turns) begin(ctx context.Context, user identity.User) (end func(), err error) {
	if user.Root() || user == identity.OnHost(os.Geteuid()) {
		return func() {}, nil
	}
	user = user.Account()
	t.mu.Lock()
	u := t.users[user]
	if u == nil {
		u = &turn{free: make(chan struct{}, 1)}
		t.users[user] = u
		u.free <- struct{}{}
	}
	u.waits++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if u.waits--; u.waits == 0 {
			delete(t.users, user)
		}
	}
	select {
	case <-u.free:
		return func() { u.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		t.refused.Add(1)
		return nil, errTooMany
	}
}

// payer returns who pays for a request. The user of the connection's other end costs nothing to find out.
// Only where that one has no limits, or a token may stand for the administrator, the request is read.
func payer(b *budget.Budget, identify Identify, r *http.Request) identity.User {
	user := identity.Nobody
	p, ok := r.Context().Value(peerKey{}).(*peer)
	if ok {
		user = p.User
	}
	if !ok || b.Exempt(user) && p.resolve != nil || r.Header.Get("Authorization") != "" {
		if caller, err := identify(r); err == nil {
			user = caller.User
		}
	}
	return user
}

// charged serves requests within the budgets of their users, and reads one after the other. An event
// stream costs little, and the number of streams is limited.
func charged(b *budget.Budget, identify Identify, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), control.CallTimeout)
		defer cancel()
		user := payer(b, identify, r)
		if r.URL.Path == control.Prefix+eventsPath {
			if b.Enter(ctx, user) != nil {
				writeError(w, errTooMany)
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		if r.Method == http.MethodGet && r.URL.Path != "/healthz" {
			end, err := limits.reads.begin(ctx, user)
			if err != nil {
				writeError(w, err)
				return
			}
			defer end()
		}
		if b.Enter(ctx, user) != nil {
			limits.reads.refused.Add(1)
			writeError(w, errTooMany)
			return
		}
		defer b.Work(user)()
		next.ServeHTTP(w, r)
	})
}
