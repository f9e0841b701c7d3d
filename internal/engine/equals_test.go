// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// TestManyEqualsShortenTheirTurns: a round of equal lows takes at most about 500 ms, as far as turns of a fifth of
// the quantum allow. Queues of one process count once.
func TestManyEqualsShortenTheirTurns(t *testing.T) {
	for _, c := range []struct {
		processes, queuesEach int
		turn                  time.Duration
	}{
		{2, 1, 50 * ms}, {10, 1, 50 * ms}, {20, 1, 25 * ms}, {25, 1, 20 * ms}, {50, 1, 10 * ms}, {60, 1, 10 * ms}, {2, 30, 50 * ms},
	} {
		e, err := New(DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		e.AddQueue(0, model.Queue{ID: model.QueueID{Session: 1}, PID: 1, Level: model.LevelInterrupt, Slices: true, Hint: model.Hint{Priority: 10}})
		for p := range c.processes {
			for i := range c.queuesEach {
				e.AddQueue(0, model.Queue{
					ID: model.QueueID{Session: model.SessionID(2 + p), Index: uint32(i)}, PID: 2 + p, Level: model.LevelInterrupt, Slices: true, Busy: true,
				})
			}
		}
		// Follow the turns for three rounds.
		now, turns := model.Time(0), 0
		running, began, longest := 0, now, map[int]time.Duration{}
		end := model.Time(3 * time.Duration(c.processes) * c.turn)
		lastRan := map[int]model.Time{}
		for now < end {
			_, wake := e.Decide(now)
			active := 0
			for _, q := range e.Snapshot(now) {
				if q.Desired.Suspend == 0 && q.Queue.Busy {
					active = q.Queue.PID
				}
			}
			if active != running {
				if running != 0 {
					if turns++; turns > 1 && now.Sub(began) != c.turn {
						t.Fatalf("%d processes: a turn of %v, want %v", c.processes, now.Sub(began), c.turn)
					}
					lastRan[running] = now
				}
				if at, ran := lastRan[active]; ran {
					longest[active] = max(longest[active], now.Sub(at))
				}
				running, began = active, now
			}
			if wake == model.Never {
				t.Fatalf("%d processes: no next turn at %v, active %d", c.processes, now, active)
			}
			now = wake
		}
		want := time.Duration(c.processes-1) * c.turn
		if len(longest) != c.processes {
			t.Errorf("%d of %d processes had two turns", len(longest), c.processes)
		}
		for pid, wait := range longest {
			if wait > want {
				t.Errorf("%d processes: %d waited %v for a turn, want %v", c.processes, pid, wait, want)
			}
		}
	}
}
