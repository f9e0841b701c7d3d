// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"xsched/internal/budget"
	"xsched/internal/control"
	"xsched/internal/identity"
)

// Sixty-four connections of one user read and are refused without end. Another user and root are not
// delayed, whatever the flood asks for.
func TestRequestsAreCharged(t *testing.T) {
	for _, path := range []string{"/healthz", control.Prefix + "/processes", control.Prefix + "/nothing"} {
		synctest.Test(t, func(t *testing.T) {
			const during = 10 * time.Second
			b, w := budget.New(), newWorld()
			ask := func(uid int) (waited time.Duration, code int) {
				user := identity.OnHost(uid)
				r := httptest.NewRequestWithContext(context.WithValue(t.Context(), peerKey{}, &peer{Peer: identity.Peer{User: user}}), http.MethodGet, path, nil)
				a, asked := httptest.NewRecorder(), time.Now()
				newMux(w, as(uid), newFeed(w), b).ServeHTTP(a, r)
				waited = time.Since(asked)
				b.Charge(user, 10*time.Millisecond) // the clock of this test stands still while a request works
				return waited, a.Code
			}
			var all sync.WaitGroup
			var requests atomic.Int64
			began := time.Now()
			for range 64 {
				all.Go(func() {
					for time.Since(began) < during {
						ask(1000)
						requests.Add(1)
						time.Sleep(time.Millisecond)
					}
				})
			}
			time.Sleep(during / 2)
			for _, uid := range []int{1001, 0} {
				if waited, code := ask(uid); waited > 0 || code >= 500 {
					t.Errorf("%s: uid %d waited %v, status %d", path, uid, waited, code)
				}
			}
			all.Wait()
			// A tenth of a core, and what was allowed or under way at once.
			if n := requests.Load(); n > 100+5+2*64 || n < 100 {
				t.Errorf("%s: one user made %d requests of 10 ms in 10 s", path, n)
			}
		})
	}
}

// readers counts how many lists are made at once.
type readers struct {
	*world
	now, most atomic.Int32
}

func (r *readers) List(ctx context.Context, c control.Caller) (control.List, error) {
	most := r.now.Add(1)
	for {
		if was := r.most.Load(); most <= was || r.most.CompareAndSwap(was, most) {
			break
		}
	}
	time.Sleep(time.Millisecond)
	r.now.Add(-1)
	return r.world.List(ctx, c)
}

// A change by handle lists all queues, as a read does, so it takes a turn, too. The change itself does not.
func TestReadsOfChangesTakeTurns(t *testing.T) {
	const user = 4242 // of this test only: the turns are shared
	synctest.Test(t, func(t *testing.T) {
		for path, body := range map[string]string{"/config/10000?level=0": "", "/config/10000?level=3": "", "/hint": `{"hint_type":1,"handle":65536,"priority":0}`} {
			r := &readers{world: newWorld()}
			r.list.Processes[0].UID = user
			h := Handler(r, as(user))
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					a := httptest.NewRecorder()
					h.ServeHTTP(a, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
					if a.Code != http.StatusOK {
						t.Errorf("%s: %d %s", path, a.Code, a.Body)
					}
				})
			}
			wg.Wait()
			if n := r.most.Load(); n != 1 {
				t.Errorf("%s: %d lists for one user at once", path, n)
			}
		}
	})
}
