// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// A process that is starved by a gang led by another device gets a grant for all of
// its queues: one of them may wait for work of the other.
func TestGrantBesideAGangIsAProcess(t *testing.T) {
	for _, name := range policy.Names() {
		grantBesideAGang(t, name)
	}
}

func grantBesideAGang(t *testing.T, name string) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Policy = name
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	low, gang := model.Hint{Priority: -5}, model.Hint{Priority: -5, Gang: "g"}
	for i, q := range []model.Queue{
		{ID: model.QueueID{Session: 1}, PID: 1, Device: 0, Hint: gang},
		{ID: model.QueueID{Session: 1, Index: 2}, PID: 1, Device: 0, Hint: gang},
		{ID: model.QueueID{Session: 1, Index: 3}, PID: 1, Device: 0, Hint: gang},
		{ID: model.QueueID{Session: 1, Index: 4}, PID: 1, Device: 0, Hint: gang},
		{ID: model.QueueID{Session: 1, Index: 1}, PID: 1, Device: 1, Hint: gang},
		{ID: model.QueueID{Session: 3}, PID: 3, Device: 1, Hint: low},
		{ID: model.QueueID{Session: 3, Index: 1}, PID: 3, Device: 1, Hint: low},
	} {
		q.Level, q.Busy = model.LevelBlock, true
		e.AddQueue(model.Time(i), q)
	}
	ran := 0
	for now := model.Time(10); now < model.Time(20*time.Second); {
		_, wake := e.Decide(now)
		running := map[uint32]bool{}
		for _, s := range e.Snapshot(now) {
			if s.Queue.PID == 3 {
				running[s.Queue.ID.Index] = s.Queue.Running
			}
		}
		if running[0] != running[1] {
			t.Fatalf("%s: at %v one runs without the other: %v", name, now, running)
		}
		if running[0] {
			ran++
		}
		now = min(max(wake, now+1), now.Add(100*time.Millisecond))
	}
	if ran == 0 {
		t.Errorf("%s: it never ran", name)
	}
}
