// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
