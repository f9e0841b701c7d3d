// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"math/rand/v2"
	"testing"
	"time"

	"xsched/internal/model"
)

// TestStalledRequests: where a thread stalls now and then, a stop is postponed or given up, but begins at the wait at
// the latest. It does not begin and end at once when the thread goes on.
func TestStalledRequests(t *testing.T) {
	for _, pauses := range []bool{false, true} {
		r := rand.New(rand.NewPCG(1, 2))
		for _, n := range []int{70, 220, 620} {
			p := program{now: model.Time(time.Hour), tells: true, pauses: pauses, stop: 500 * us}
			for i := range 2000 {
				if p.stall = 0; i%4 == 0 {
					p.stall, p.after = time.Duration(r.IntN(int(4500*us))), r.IntN(n)
				}
				if p.run(n, 42*us); i < 1000 {
					p.longest, p.vain, p.unprotected, p.requests = 0, 0, 0, 0
				}
			}
			state := p.s.State()
			t.Logf("%d launches, pauses %v: %d of %d waits not protected, %d vain stops, %+v", n, pauses, p.unprotected, p.requests, p.vain, state)
			if p.longest > p.stop || p.vain > 30 || pauses && state.Counts.Early > 60 {
				t.Errorf("%d launches, pauses %v: a wait of %v, %d vain stops, %+v", n, pauses, p.longest, p.vain, state)
			}
		}
	}
}

// TestSlowRequests: where some requests are slow throughout, the others stay protected.
func TestSlowRequests(t *testing.T) {
	for _, n := range []int{70, 220, 620} {
		r := rand.New(rand.NewPCG(1, 2))
		p := program{now: model.Time(time.Hour), tells: true, stop: 500 * us}
		for i := range 2400 {
			if i == 400 {
				p.requests, p.unprotected = 0, 0
			}
			if r.IntN(10) == 0 {
				p.run(n, 84*us)
			} else {
				p.run(n, 42*us)
			}
		}
		t.Logf("%d launches: %d of %d waits not protected, %+v", n, p.unprotected, p.requests, p.s.State())
		if p.unprotected > p.requests*2/5 {
			t.Errorf("%d launches: %d of %d waits not protected, %+v", n, p.unprotected, p.requests, p.s.State())
		}
	}
}

// TestStopAtTheWaitIsNoHit: a stop that begins with the wait was not predicted, however long each report takes.
func TestStopAtTheWaitIsNoHit(t *testing.T) {
	for _, skew := range []time.Duration{-10 * us, 10 * us} {
		r := rand.New(rand.NewPCG(3, 4))
		p := program{now: model.Time(time.Hour), tells: true, skew: skew, stop: 500 * us}
		for range 1000 { // many are shorter than expected
			p.run(60+r.IntN(600), 42*us)
		}
		if state := p.s.State(); state.Predicted || state.Hits > 0.5 {
			t.Errorf("an end reported %v late: %+v", skew, state)
		}
	}
}
