// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// TestCannotGather: beside short launch-bound requests the low has a tiny slice while their kernels gather. If they do
// not, although they should, every kernel would pay for two switches: the low keeps the driver's slice then.
func TestCannotGather(t *testing.T) {
	for name, bursts := range map[string]uint64{"gathers": 1, "can't gather": 0} {
		cfg := DefaultConfig()
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		add := func(session int, hint model.Hint) model.QueueID {
			q := model.Queue{ID: model.QueueID{Session: model.SessionID(session)}, PID: 100 + session, Device: 1, Level: model.LevelInterrupt, Slices: true, Hint: hint}
			e.AddQueue(0, q)
			return q.ID
		}
		high := add(1, model.Hint{Priority: 10, SLO: model.SLO{Latency: time.Minute}})
		low := add(2, model.Hint{})
		e.SetBusy(0, low, true)
		now, desired := model.Time(time.Second), map[model.QueueID]model.Desired{}
		step := func(until model.Time) {
			for {
				changes, wake := e.Decide(now)
				for _, c := range changes {
					desired[c.Queue] = c
				}
				if wake > until {
					break
				}
				now = max(wake, now+1)
			}
			now = until
		}
		step(now)
		progress, asked := model.Progress{}, 0
		const requests, submit, wait = 100, 2 * ms, 300 * us
		for range requests {
			start := now
			e.SetProgress(now, high, progress)
			e.SetBusy(now, high, true)
			step(start.Add(submit))
			if desired[high].Gather > 0 {
				asked++
				progress.Bursts += bursts
			}
			progress.Launches += 70
			progress.Waits = true
			e.SetProgress(now, high, progress)
			step(start.Add(submit + wait))
			progress.Waits = false
			e.SetProgress(now, high, progress)
			e.SetIdleAfter(now, high, submit, wait)
			step(start.Add(8 * ms))
		}
		tiny := desired[low].Slice != 0
		if asked == 0 || tiny != (bursts > 0) || (asked > requests/2) != (bursts > 0) {
			t.Errorf("%s: asked %d of %d times, the low has %+v", name, asked, requests, desired[low])
		}
	}
}
