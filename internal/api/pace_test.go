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

	"xsched/internal/control"
	"xsched/internal/identity"
)

// Sixty-four connections of one user read one after the other and rest between reads. Another user
// and root are not delayed.
func TestReadsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPacer()
		const cost, during = 10 * time.Millisecond, 10 * time.Second
		read := func(user identity.User) (waited time.Duration, err error) {
			asked := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			end, err := p.begin(ctx, user)
			if err != nil {
				return 0, err
			}
			waited = time.Since(asked)
			time.Sleep(cost)
			end()
			return waited, nil
		}
		start := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		reads := 0
		for range 64 {
			wg.Go(func() {
				for time.Since(start) < during {
					if _, err := read(identity.OnHost(1000)); err == nil {
						mu.Lock()
						reads++
						mu.Unlock()
					}
				}
			})
		}
		time.Sleep(time.Second)
		for _, user := range []identity.User{identity.OnHost(1001), {}} {
			if waited, err := read(user); err != nil || waited > 0 {
				t.Errorf("%v waited %v: %v", user, waited, err)
			}
		}
		wg.Wait()
		if most := int(during/((1+pauseFactor)*cost)) + 65; reads > most || reads < most/3 {
			t.Errorf("one user made %d reads, want about %d", reads, most)
		}
		time.Sleep(2 * longestRest)
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.users) != 0 {
			t.Errorf("%d users are remembered", len(p.users))
		}
	})
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

// A change by handle lists all queues, as a read does, so it is paced, too. The change itself is not.
func TestReadsOfChangesArePaced(t *testing.T) {
	const user = 4242 // of this test only: the pacer is shared, and its time is not
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
		time.Sleep(2 * longestRest) // the pacer forgets the user
	})
}
