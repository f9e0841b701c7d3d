// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
)

// order records which user's requests the loop ran.
type order struct {
	mu   sync.Mutex
	uids []int
}

func (o *order) run(uid int, takes time.Duration) func() {
	return func() {
		for began := time.Now(); time.Since(began) < takes; {
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.uids = append(o.uids, uid)
	}
}

func (o *order) before(uid, other int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := slices.Index(o.uids, uid)
	if at < 0 {
		return len(o.uids)
	}
	n := 0
	for _, u := range o.uids[:at] {
		if u == other {
			n++
		}
	}
	return n
}

// A user whose queue is full delays another user's request by one of its own, and root's by none.
func TestRequestsOfUsersTakeTurns(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { c.Loop.UID = 0 })
	var seen order
	var wg sync.WaitGroup
	release := h.Block(t)
	as := func(uid int) context.Context { return loop.WithUser(t.Context(), identity.OnHost(uid)) }
	for range 500 { // most of them wait for a place
		wg.Go(func() { _ = h.PostAs(as(1000), seen.run(1000, 0)) })
	}
	sessiontest.Await(t, "the queue is full", func() bool { return h.Waiting(identity.OnHost(1000)) == loop.UserDepth })
	for _, uid := range []int{1001, 0} {
		if err := h.PostAs(as(uid), seen.run(uid, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Observe(identity.OnHost(1000), 1, true); !errors.Is(err, loop.ErrBusy) {
		t.Errorf("an observation found a place in a full queue: %v", err)
	}
	release()
	wg.Wait()
	if err := h.Call(t.Context(), func() {}); err != nil {
		t.Fatal(err)
	}
	if n := seen.before(1001, 1000); n > 1 {
		t.Errorf("%d requests of the first user ran before that of the second", n)
	}
	if n := seen.before(0, 1000); n > 0 {
		t.Errorf("%d requests of a user ran before root's", n)
	}
	if len(seen.uids) != 502 {
		t.Errorf("%d of 502 requests ran", len(seen.uids))
	}
}

// Requests are charged to their user: expensive ones get a share of the loop's time.
func TestExpensiveRequestsWait(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, 1000, 1001) })
	h.Client(t, 0, 0)
	h.Client(t, 0, 0)
	as := func(uid int) context.Context { return loop.WithUser(t.Context(), identity.OnHost(uid)) }
	var seen order
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = h.PostAs(as(1000), seen.run(1000, 200*time.Microsecond))
				}
			}
		})
	}
	start, spent := time.Now(), loopTime(t, h)
	time.Sleep(200 * time.Millisecond)
	used := float64(loopTime(t, h)-spent) / float64(time.Since(start))
	close(stop)
	wg.Wait()
	if used > 0.6 {
		t.Errorf("one user's requests take %.0f %% of the loop's time", 100*used)
	}
	if seen.before(1001, 1000) < 20 {
		t.Error("nearly no request ran: the test measures nothing")
	}
}

// Requests of a user without a client are paced, also if each comes after the last one was answered, and
// another user's request in between shows that the first one has none.
func TestRequestsOneAfterAnother(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Users(c, 1001) })
	h.Client(t, 0, 0)
	as := loop.WithUser(t.Context(), identity.OnHost(1000))
	var seen order
	start, spent := time.Now(), loopTime(t, h)
	for time.Since(start) < 200*time.Millisecond {
		done := make(chan struct{})
		if err := h.PostAs(as, func() { seen.run(1000, 200*time.Microsecond)(); close(done) }); err != nil {
			t.Fatal(err)
		}
		<-done
		if err := h.PostAs(loop.WithUser(t.Context(), identity.OnHost(1001)), func() {}); err != nil {
			t.Fatal(err)
		}
	}
	used := float64(loopTime(t, h)-spent) / float64(time.Since(start))
	t.Logf("%d requests take %.0f %% of the loop's time", len(seen.uids), 100*used)
	if used > 0.6 {
		t.Errorf("one user's requests take %.0f %% of the loop's time", 100*used)
	}
}

// A session that is refused as the second one of its process leaves no reference to its user's account:
// the account would stay for ever.
func TestRefusedSessionLeavesNoReference(t *testing.T) {
	h := sessiontest.Start(t, nil)
	h.Client(t, 0, 0)
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	who := loop.Identity{PID: os.Getpid(), User: identity.OnHost(1000)}
	hw := sessiontest.Attached{Hardware: &sessiontest.Hardware{}, Ended: func(bool) {}}
	if _, err := h.Attach(t.Context(), who, model.HintChange{}, hw, pidfd); err == nil {
		t.Fatal("a process has two sessions")
	}
	if n := h.References(who.User); n != 0 {
		t.Errorf("%d references are left", n)
	}
}
