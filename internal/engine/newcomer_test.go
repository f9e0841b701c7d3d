// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"
	"time"

	"xsched/internal/model"
)

// TestNewcomer: a late queue has its share from then on, and is not compensated for
// the time before, however long ago the last decision was.
func TestNewcomer(t *testing.T) {
	const before, after = time.Minute, 2 * time.Second
	for _, name := range []string{"UP", "PUP", "SPUP", "CFS", "RR"} {
		for _, sliced := range []bool{false, true} { // until the newcomer arrives, which has no slices
			t.Run(fmt.Sprintf("%s-%v", name, sliced), func(t *testing.T) {
				cfg := DefaultConfig()
				cfg.Policy, cfg.StarvationBound = name, 0
				e, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				add := func(now model.Time, session model.SessionID, sliced bool) {
					e.AddQueue(now, model.Queue{
						ID: model.QueueID{Session: session}, PID: int(session), Level: model.LevelInterrupt, Slices: sliced, Busy: true,
					})
				}
				add(simStart, 1, sliced)
				e.Decide(simStart)
				come := simStart.Add(before)
				add(come, 2, false)
				had := map[int]time.Duration{}
				for now, end := come, come.Add(after); now < end; {
					_, wake := e.Decide(now)
					next := min(wake, end)
					for _, s := range e.Snapshot(now) {
						if s.Queue.Running {
							had[s.Queue.PID] += next.Sub(now)
						}
					}
					now = next
				}
				if had[1] < after*4/10 || had[2] < after*4/10 {
					t.Errorf("of %v the one that was there had %v, the newcomer %v", after, had[1], had[2])
				}
			})
		}
	}
}
