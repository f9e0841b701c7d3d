// SPDX-License-Identifier: Apache-2.0

// Package budget limits the CPU time that the daemon spends for each account. Every entry point asks
// before it works for somebody, and charges what the work took. An account over its budget waits or is
// refused; others are served at once. The administrator and the daemon's own user have no limit.
package budget

import (
	"context"
	"errors"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"xsched/internal/identity"
)

const (
	// period is how long an account pays for one unit of CPU time: it has a tenth of a core in the long
	// run. A flood also costs what can't be charged, such as 15 us for each refused connection, and both
	// together must stay below the half core that `make attack` allows.
	period = 10
	// burst is what an account may use at once. It is 100 programs that start together, at 0.5 ms each.
	burst = 50 * time.Millisecond
	// debt bounds what an account pays for later: the second of CPU time that 64 connections with the
	// longest work use at once. More may be an error of the measurement, and would exclude the account.
	debt = period * time.Second
	// entry is what a connection or a request costs outside of what Work measures: accept, close, the
	// HTTP server, wake-ups, garbage. With floods of each kind, the daemon's CPU time exceeded the
	// measured one by 40 to 150 us per entry.
	entry = 100 * time.Microsecond
	// maxAccounts bounds the memory. Accounts beyond it share one budget.
	maxAccounts = 4096
)

// ErrOver reports an account over its budget.
var ErrOver = errors.New("this user's requests use too much of the daemon's CPU time; wait a second")

// Budget has the accounts of all users. A nil Budget has no limits.
type Budget struct {
	own      identity.User
	began    time.Time // a step of the clock changes no budget
	accounts sync.Map  // identity.User to *account
	count    atomic.Int64
	forgot   atomic.Int64 // when forget began last
	refused  atomic.Uint64
}

// account is a token bucket in one word: the time at which it is full again. It has no lock, so that a
// thread of low priority can't delay the engine.
type account struct{ full atomic.Int64 }

// New returns a budget without debts.
func New() *Budget {
	return &Budget{own: identity.OnHost(os.Geteuid()), began: time.Now()}
}

// Refused counts the refusals.
func (b *Budget) Refused() uint64 {
	if b == nil {
		return 0
	}
	return b.refused.Load()
}

// Exempt reports whether a user has no limit.
func (b *Budget) Exempt(user identity.User) bool { return b == nil || user.Root() || user == b.own }

func (b *Budget) now() time.Duration { return time.Since(b.began) }

// others stands for the accounts beyond maxAccounts.
var others = identity.User{UID: -1, Container: "others"}

func (b *Budget) of(user identity.User) *account {
	user = user.Account()
	if a, ok := b.accounts.Load(user); ok {
		return a.(*account)
	}
	if b.count.Load() >= maxAccounts {
		b.forget()
	}
	if b.count.Load() >= maxAccounts {
		user = others
	}
	a, known := b.accounts.LoadOrStore(user, &account{})
	if !known {
		b.count.Add(1)
	}
	return a.(*account)
}

// forget removes accounts without debts, at most once in the time that a burst lasts.
func (b *Budget) forget() {
	now, last := int64(b.now()), b.forgot.Load()
	if now-last < int64(burst) || !b.forgot.CompareAndSwap(last, now) {
		return
	}
	b.accounts.Range(func(user, a any) bool {
		if a.(*account).full.Load() <= now {
			if _, there := b.accounts.LoadAndDelete(user); there {
				b.count.Add(-1)
			}
		}
		return true
	})
}

// Charge charges work that was done for a user.
func (b *Budget) Charge(user identity.User, took time.Duration) {
	if b.Exempt(user) || took <= 0 {
		return
	}
	a, now := b.of(user), b.now()
	for {
		was := a.full.Load()
		next := min(max(was, int64(now))+int64(period*took), int64(now+period*burst+debt))
		if next <= was || a.full.CompareAndSwap(was, next) {
			return
		}
	}
}

// reserve reserves the next free moment of an account for an entry, and returns the time until then.
func (b *Budget) reserve(user identity.User, most time.Duration) (wait time.Duration, ok bool) {
	a, now := b.of(user), b.now()
	for {
		was := a.full.Load()
		from := max(was, int64(now))
		wait = max(0, time.Duration(from)-now-period*burst)
		if wait > most {
			b.refused.Add(1)
			return 0, false
		}
		if a.full.CompareAndSwap(was, from+int64(period*entry)) {
			return wait, true
		}
	}
}

// Over reports whether an account would have to wait.
func (b *Budget) Over(user identity.User) bool {
	return !b.Exempt(user) && time.Duration(b.of(user).full.Load())-b.now() > period*burst
}

// Enter waits until an account may use the daemon again, and charges one entry. Those who wait get their
// turns in the order in which they came. ErrOver reports at once that the wait would exceed ctx.
func (b *Budget) Enter(ctx context.Context, user identity.User) error {
	if b.Exempt(user) {
		return nil
	}
	most := time.Duration(math.MaxInt64)
	if end, ok := ctx.Deadline(); ok {
		most = time.Until(end)
	}
	wait, ok := b.reserve(user, most)
	if !ok {
		return ErrOver
	}
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Pause waits while an account is over its budget, for at most the given time. It charges nothing.
func (b *Budget) Pause(ctx context.Context, user identity.User, most time.Duration) {
	if b.Exempt(user) {
		return
	}
	wait := time.Duration(b.of(user).full.Load()) - b.now() - period*burst
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(min(wait, most))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Work measures the CPU time of the calling goroutine until done, and charges it.
func (b *Budget) Work(user identity.User) (done func()) {
	if b.Exempt(user) {
		return func() {}
	}
	took := Measure()
	return func() { b.Charge(user, took()) }
}
