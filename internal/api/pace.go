// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// Reading costs the daemon's CPU time, which programs on the same machine need: a list of 16,000
// queues is 8 MB of JSON. Each user's reads therefore run one after the other, and pause for
// pauseFactor times as long as the last one took. Root and the daemon's user are not limited.
const (
	pauseFactor = 4
	longestRest = 2 * time.Second
)

// pacer limits the reads of each user.
type pacer struct {
	mu      sync.Mutex
	users   map[identity.User]*pacedUser
	refused atomic.Uint64
}

// pacedUser is one user's state.
type pacedUser struct {
	turn  chan struct{} // one token
	waits int           // requests that hold or await the token
	next  time.Time     // guarded by turn
}

// sharedLimits are the limits that all listeners of the daemon share.
type sharedLimits struct {
	reads       *pacer
	connections atomic.Uint64 // refused
}

var limits = &sharedLimits{reads: newPacer()}

func (l *sharedLimits) refused() (connections, reads uint64) {
	return l.connections.Load(), l.reads.refused.Load()
}

func newPacer() *pacer { return &pacer{users: map[identity.User]*pacedUser{}} }

var errTooMany = &control.Error{
	Kind: control.ErrUnavailable, Cause: "this user has too many requests under way",
	Remedy: "wait for the replies, or read the event stream at " + control.Prefix + eventsPath,
}

// begin waits for the user's turn. The caller calls end after the request.
func (p *pacer) begin(ctx context.Context, user identity.User) (end func(), err error) {
	if user.Root() || user == identity.OnHost(os.Geteuid()) {
		return func() {}, nil
	}
	user = user.Account()
	p.mu.Lock()
	r := p.users[user]
	if r == nil {
		r = &pacedUser{turn: make(chan struct{}, 1)}
		p.users[user] = r
		r.turn <- struct{}{}
	}
	r.waits++
	p.mu.Unlock()
	select {
	case <-r.turn:
	case <-ctx.Done():
		p.leave(user, r)
		p.refused.Add(1)
		return nil, errTooMany
	}
	rest := time.NewTimer(time.Until(r.next))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
		r.turn <- struct{}{}
		p.leave(user, r)
		p.refused.Add(1)
		return nil, errTooMany
	}
	start := time.Now()
	return func() {
		now := time.Now()
		r.next = now.Add(min(pauseFactor*now.Sub(start), longestRest))
		r.turn <- struct{}{}
		p.leave(user, r)
	}, nil
}

// leave forgets a user whose pause has passed, later.
func (p *pacer) leave(user identity.User, r *pacedUser) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.waits--; r.waits == 0 {
		time.AfterFunc(longestRest, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if r.waits == 0 && p.users[user] == r {
				delete(p.users, user)
			}
		})
	}
}

// wrap paces reads. Changes are not paced here, because the engine charges them, and neither are
// health checks and event streams, which cost little.
func (p *pacer) wrap(identify Identify, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path == "/healthz" || r.URL.Path == control.Prefix+eventsPath {
			next.ServeHTTP(w, r)
			return
		}
		caller, err := identify(r)
		if err != nil {
			writeError(w, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), control.CallTimeout)
		defer cancel()
		end, err := p.begin(ctx, caller.User)
		if err != nil {
			writeError(w, err)
			return
		}
		defer end()
		next.ServeHTTP(w, r)
	})
}
