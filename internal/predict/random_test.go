// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"math/rand/v2"
	"testing"
	"time"

	"xsched/internal/model"
)

// TestRandomCalls: whatever a program does, looking at it makes progress, and a stop before a wait has a limit.
func TestRandomCalls(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 7))
		var s Program
		now, launches := model.Time(time.Hour), uint64(r.IntN(3))
		if r.IntN(8) == 0 {
			launches = ^uint64(0) - uint64(r.IntN(5000))
		}
		odd := r.IntN(3) // 0: sane, 1: nonsense counts, 2: and times
		waits := false
		span := func() time.Duration {
			return []time.Duration{70 * us, 300 * us, 900 * us, 1100 * us, 3 * ms, 6 * ms, 20 * ms, 30 * ms}[r.IntN(8)]
		}
		check := func(op string) {
			t.Helper()
			if s.chain < 0 || s.checks < 0 || s.follows && s.chain < 1 {
				t.Fatalf("seed %d, %s: chain %d checks %d follows %v", seed, op, s.chain, s.checks, s.follows)
			}
			f := s.Feeding()
			if f.StopAt != 0 && !s.waits && (f.StopUntil.Sub(f.StopAt) > leadMax+2*model.SegmentMin || f.StopUntil < f.StopAt) {
				t.Fatalf("seed %d, %s: stop %v", seed, op, f.StopUntil.Sub(f.StopAt))
			}
			if f.Hold < 0 || f.Hold > model.SegmentMin {
				if odd < 2 {
					t.Fatalf("seed %d, %s: hold %v", seed, op, f.Hold)
				}
			}
			for n := 0; ; n++ { // checks without progress end
				f := s.Feeding()
				if f.CheckAt == 0 || r.IntN(3) == 0 {
					break
				}
				if n > 1200 {
					t.Fatalf("seed %d, %s: %d checks", seed, op, n)
				}
				now = max(now, f.CheckAt)
				if r.IntN(4) == 0 {
					launches += uint64(r.IntN(300))
				}
				s.Progress(now, launches, waits)
				if at := s.Feeding().CheckAt; at != 0 && at <= now {
					t.Fatalf("seed %d, %s: check at %v after now", seed, op, at.Sub(now))
				}
			}
		}
		began := now
		request := func(n int, fed, tail time.Duration) {
			began = now
			s.Begin(now, launches)
			waits = false
			check("begin")
			launches += uint64(n)
			now = max(now, began.Add(fed))
			s.Progress(now, launches, true)
			now = now.Add(tail)
			s.End(now, began, fed, tail, model.LowerYield)
		}
		for range 150 {
			if r.IntN(2) == 0 { // a launch-bound prompt and tokens, so that there is a class
				request(1000, 20*ms, 100*us)
				for range r.IntN(80) {
					now = now.Add(70 * us)
					request(2, 80*us, 2800*us)
				}
				now = now.Add(span())
			}
			switch r.IntN(12) {
			case 0, 1, 2:
				began, waits = now, false
				s.Begin(now, launches)
			case 3, 4:
				launches += uint64(r.IntN(1200))
				waits = r.IntN(3) == 0
				s.Progress(now, launches, waits)
			case 5, 6:
				fed := min(span(), now.Sub(began))
				s.End(now, began, fed, now.Sub(began)-fed, model.Lower(r.IntN(3)))
			case 7:
				s.Unseen(now, model.Lower(r.IntN(3)))
			case 8:
				s.Pause(now)
			case 9:
				s.Drop(now)
			case 10:
				if odd > 0 {
					switch r.IntN(5) {
					case 0:
						launches -= uint64(r.IntN(2000))
					case 1:
						launches += 1<<31 - uint64(r.IntN(3)) + 1
					case 2:
						launches = ^uint64(0) - uint64(r.IntN(3))
					case 3:
						launches = 0
					case 4:
						s.End(now, now.Add(-time.Duration(r.Int64())), time.Duration(r.Int64()), time.Duration(r.Int64()), model.LowerYield)
					}
				}
			case 11:
				if odd == 2 {
					now = now.Add(-span())
				}
			}
			check("call")
			now = now.Add(span())
		}
	}
}
