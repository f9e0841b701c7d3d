// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/identity"
	"xsched/internal/model"
)

// This file queues requests for the loop. Each user has a queue of its own, and the loop serves the
// queues in turn and charges each request to its user. One that is over its share waits, and so do
// its own requests only. The administrator's and the daemon's own requests come first.
const (
	daemonDepth     = 1024 // requests of the daemon and the administrator
	userDepth       = 64   // of one user
	requestsPerPass = 64
	serveTime       = 200 * time.Microsecond // of a pass, for the requests of users
)

// inbox holds the requests of one user.
type inbox struct {
	user     identity.User
	requests chan func()
	refs     atomic.Int64 // grows under mailbox.mu only
	unused   atomic.Int64 // model.Time since when refs is 0
	account  account
}

// inboxAge is how long an account outlives its last use. It exceeds the time in which a user repays
// its debt (paceDebt/paceShare windows, 8 ms), so that requests one after another are paced, too.
const inboxAge = 100 * time.Millisecond

// mailbox holds all requests.
type mailbox struct {
	daemon chan func()
	users  atomic.Pointer[[]*inbox] // replaced, never changed
	from   int                      // where the next round begins; only the loop uses it
	late   bool                     // requests wait for the next window

	mu     sync.Mutex // guards changes of users
	byUser map[identity.User]*inbox
}

func newMailbox() *mailbox {
	m := &mailbox{daemon: make(chan func(), daemonDepth), byUser: map[identity.User]*inbox{}}
	m.users.Store(&[]*inbox{})
	return m
}

// open returns the inbox of a user's account until the caller closes it.
func (m *mailbox) open(user identity.User) *inbox {
	user = user.Account()
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.byUser[user]
	if b == nil {
		b = &inbox{user: user, requests: make(chan func(), userDepth)}
		m.byUser[user] = b
	}
	b.refs.Add(1)
	m.sweep()
	return b
}

// close ends the use of an inbox.
func (m *mailbox) close(b *inbox) {
	b.done()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweep()
}

// done is close for the loop. It does not take mailbox.mu, which is held for as long as it takes to
// walk over all users. The locks that the loop does take (Session.mu, Leases.mu, Worker.mu) are held
// for a few instructions, never during a system call of ours or a line of the log.
// A later open or close removes the inbox.
func (b *inbox) done() {
	b.unused.Store(int64(clock.Now()))
	b.refs.Add(-1)
}

// sweep publishes the inboxes in use and removes those that were not used for a while. Preconditions: m.mu is held.
func (m *mailbox) sweep() {
	now := clock.Now()
	for user, b := range m.byUser {
		if b.refs.Load() == 0 && now.Sub(model.Time(b.unused.Load())) > inboxAge {
			delete(m.byUser, user)
		}
	}
	was := *m.users.Load()
	if len(was) == len(m.byUser) && !slices.ContainsFunc(was, func(b *inbox) bool { return m.byUser[b.user] != b }) {
		return
	}
	all := slices.Collect(maps.Values(m.byUser))
	m.users.Store(&all)
}

type (
	userKey   struct{}
	clientKey struct{}
)

// WithUser charges the requests made with a context to a user. Without it, they are the daemon's own.
func WithUser(ctx context.Context, user identity.User) context.Context {
	return context.WithValue(ctx, userKey{}, user)
}

// post queues f for the loop, on behalf of the context's user. It blocks only the caller while the
// user's queue is full.
func (t *thread) post(ctx context.Context, f func()) error {
	if user, ok := ctx.Value(clientKey{}).(identity.User); ok {
		return t.postTo(ctx, user, f)
	}
	user, ok := ctx.Value(userKey{}).(identity.User)
	if !ok || user.Root() || user == identity.OnHost(t.uid) {
		return t.send(ctx, t.mail.daemon, f)
	}
	return t.postTo(ctx, user, f)
}

func (t *thread) postTo(ctx context.Context, user identity.User, f func()) error {
	b := t.mail.open(user)
	// The inbox must exist until the loop has taken the request.
	err := t.send(ctx, b.requests, func() { f(); b.done() })
	if err != nil {
		t.mail.close(b)
	}
	return err
}

func (t *thread) send(ctx context.Context, to chan<- func(), f func()) error {
	select {
	case to <- f:
	default:
		select {
		case to <- f:
		case <-ctx.Done():
			return ctx.Err()
		case <-t.done:
			return ErrStopped
		}
	}
	t.ring()
	return nil
}

// ErrBusy reports that a user has too many requests under way.
var ErrBusy = errors.New("too many requests of this user")

// offer queues f on behalf of a user's program, or refuses if the user's queue is full.
func (t *thread) offer(user identity.User, f func()) error {
	b := t.mail.open(user)
	select {
	case b.requests <- func() { f(); b.done() }:
		t.ring()
		return nil
	default:
		t.mail.close(b)
		t.refused.Add(1)
		return ErrBusy
	}
}

// serve runs requests: the daemon's, and then those of users in turn.
func (t *thread) serve(p *pacer) {
	var b [8]byte
	_, _ = unix.Read(t.wake, b[:])
	for n := 0; ; n++ {
		if n == requestsPerPass {
			t.ring() // serve the rest after the doorbells of the next pass
			break
		}
		select {
		case f := <-t.mail.daemon:
			f()
			continue
		default:
		}
		break
	}
	t.serveUsers(clock.Now(), p)
}

// serveUsers runs one request of each user in turn, within the users' shares.
func (t *thread) serveUsers(start model.Time, p *pacer) {
	users := *t.mail.users.Load()
	t.mail.late = false
	begin := start
	for n, idle := 0, 0; idle < len(users); n++ {
		if n >= requestsPerPass || begin.Sub(start) >= serveTime {
			t.ring()
			return
		}
		in := users[t.mail.from%len(users)]
		t.mail.from++
		if len(in.requests) == 0 {
			idle++
			continue
		}
		if len(users) > 1 && !in.account.within(p.window) {
			t.mail.late = true
			idle++
			continue
		}
		select {
		case f := <-in.requests:
			idle = 0
			f()
			end := clock.Now()
			p.bills.request(in, end.Sub(begin))
			begin = end
		default:
			idle++
		}
	}
}
