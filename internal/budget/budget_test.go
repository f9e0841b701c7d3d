// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"xsched/internal/identity"
)

// One account gets a fifth of a core and waits in order, whatever it does. Another one and the
// administrator wait for nothing.
func TestOneAccountPays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		flood := identity.User{UID: 100_000, Namespace: 7, Creator: 1000} // pays from uid 1000
		const cost, during = 2 * time.Millisecond, 10 * time.Second
		var mu sync.Mutex
		used, refused := time.Duration(0), 0
		var all sync.WaitGroup
		began := time.Now()
		for range 128 {
			all.Go(func() {
				for time.Since(began) < during {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					err := b.Enter(ctx, flood)
					cancel()
					mu.Lock()
					switch {
					case errors.Is(err, ErrOver):
						refused++
					case err == nil:
						used += cost + entry
					}
					mu.Unlock()
					if err == nil {
						b.Charge(flood, cost)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		time.Sleep(during / 2)
		if !b.Over(identity.OnHost(1000)) {
			t.Error("the creator of the namespace is not charged")
		}
		for _, user := range []identity.User{identity.OnHost(1001), {}, {Container: "docker-1"}} {
			for range 3 {
				asked := time.Now()
				if err := b.Enter(t.Context(), user); err != nil || time.Since(asked) > 0 {
					t.Errorf("%v waited %v: %v", user, time.Since(asked), err)
				}
				b.Charge(user, cost)
			}
		}
		all.Wait()
		// Work is charged when it is done, so that all may begin some at once.
		if want := during/period + burst; used > want+128*2*cost || used < want {
			t.Errorf("one account used %v in %v, want %v", used, during, want)
		}
		if refused == 0 || b.Refused() != uint64(refused) {
			t.Errorf("%d refusals, %d counted", refused, b.Refused())
		}
		time.Sleep(period*burst + debt)
		if b.Over(flood) {
			t.Error("the debt does not end")
		}
	})
}

// A wait ends with its context.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, user := New(), identity.OnHost(1000)
		b.Charge(user, burst+time.Second/period)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		if err := b.Enter(ctx, user); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		b.Charge(user, time.Hour)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Enter(ctx, user); !errors.Is(err, ErrOver) {
			t.Error(err)
		}
		if time.Sleep(debt); b.Enter(t.Context(), user) != nil {
			t.Error("an hour of CPU time in one piece excludes an account")
		}
	})
}

// Users can't fill the memory with accounts, and those beyond the limit still pay.
func TestAccountsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		for uid := range 3 * maxAccounts {
			b.Charge(identity.OnHost(1+uid), time.Second)
		}
		if n := b.count.Load(); n > maxAccounts+1 {
			t.Errorf("%d accounts", n)
		}
		if !b.Over(identity.OnHost(3*maxAccounts)) || !b.Over(identity.OnHost(1)) {
			t.Error("an account is not charged")
		}
		time.Sleep(period*burst + debt)
		if b.Charge(identity.OnHost(1), time.Millisecond); b.count.Load() > maxAccounts+1 {
			t.Errorf("%d accounts", b.count.Load())
		}
		b.Charge(identity.OnHost(1<<20), time.Millisecond)
		if n := b.count.Load(); n > 2 {
			t.Errorf("%d accounts without debts are kept", n)
		}
	})
}

// Work counts CPU time, not elapsed time.
func TestWorkIsCPUTime(t *testing.T) {
	b, user := New(), identity.OnHost(1000)
	debt := func() time.Duration { return time.Duration(b.of(user).full.Load()) - b.now() }
	done := b.Work(user)
	time.Sleep(20 * time.Millisecond)
	if done(); debt() > period*10*time.Millisecond {
		t.Errorf("20 ms of sleep cost %v", debt()/period)
	}
	done = b.Work(user)
	for began := threadTime(); threadTime()-began < 20*time.Millisecond; {
		_ = began
	}
	if done(); debt() < period*10*time.Millisecond {
		t.Errorf("20 ms of CPU time cost %v", debt()/period)
	}
	done = (*Budget)(nil).Work(user)
	done()
}

// Users who take all that they can leave a place for the next one.
func TestPlacesForOthers(t *testing.T) {
	p := Places{All: 512, Each: 64}
	for uid := range 50 {
		for range 100 {
			p.Take(identity.OnHost(1 + uid))
		}
	}
	if n := p.of[identity.OnHost(1)]; n != 64 {
		t.Errorf("the first user has %d places", n)
	}
	if !p.Take(identity.User{}) {
		t.Error("no place for the administrator")
	}
	for p.of[identity.OnHost(1)] > 0 {
		p.Give(identity.OnHost(1))
	}
	if !p.Take(identity.OnHost(99)) {
		t.Error("no place for another user")
	}
}

// TestPauses: refusals on several sockets share one fifth of a core, and nobody waits for long.
func TestPauses(t *testing.T) {
	const took = 200 * time.Microsecond
	refusals.Store(0)
	first := Pause(took)
	second := Pause(took) // of another socket, at the same time
	if first < shortestPause || first > longestPause || second < 2*refusePause*took-100*time.Microsecond {
		t.Errorf("pauses of %v and %v after %v each", first, second, took)
	}
	for range 100 {
		if p := Pause(time.Second); p > longestPause {
			t.Fatalf("a pause of %v", p)
		}
	}
}
