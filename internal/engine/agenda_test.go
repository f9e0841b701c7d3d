// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// otherDevices returns an engine with two queues on each of two devices, and one on each of n others.
func otherDevices(t testing.TB, n int) *Engine {
	t.Helper()
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	add := func(session int, gpu model.DeviceID) {
		e.AddQueue(1, model.Queue{ID: model.QueueID{Session: model.SessionID(session)}, PID: session, Device: gpu, Level: model.LevelBlock})
	}
	for i := range 4 {
		add(1+i, model.DeviceID(1+i/2))
	}
	for i := range n {
		add(5+i, model.DeviceID(3+i))
	}
	e.Decide(1)
	e.EachAlone(func(model.DeviceID, model.QueueID, bool) {})
	return e
}

// One device's decision costs the same with 16,000 other devices, including what the loop asks before and after.
func TestDecisionIgnoresOtherDevices(t *testing.T) {
	limit := 3.0 // 1.0 to 1.5 measured; a walk over all devices is 100 times and more
	if raceEnabled {
		limit = 20 // the detector slows memory down
	}
	cost := func(n int) time.Duration {
		e, now := otherDevices(t, n), model.Time(2)
		best := time.Hour
		var ids []model.QueueID
		for range 20 {
			start := time.Now()
			for i := range 100 {
				now++
				e.SetBusy(now, model.QueueID{Session: model.SessionID(1 + i%4)}, i/4%2 == 0)
				e.EachPending(func(model.DeviceID) {})
				ids = e.ProgressDue(now, ids[:0])
				e.Decide(now)
				e.EachAlone(func(model.DeviceID, model.QueueID, bool) {})
				e.MarkRequest(now, 1, true)
				e.Protections(now, 1)
				e.Stats()
			}
			best = min(best, time.Since(start)/100)
		}
		return best
	}
	alone, crowded := cost(0), cost(16000)
	ratio := float64(crowded) / float64(alone)
	t.Logf("a decision takes %v alone and %v with 16,000 other devices: %.2f times", alone, crowded, ratio)
	if ratio > limit {
		t.Errorf("a decision takes %v alone and %v with 16,000 other devices", alone, crowded)
	}
}

// A device that leaves while a decision about it is pending, and one whose wake-up is due, are found again.
func TestAgendaOfDevicesThatLeave(t *testing.T) {
	e := otherDevices(t, 3)
	for i := range 3 {
		id := model.QueueID{Session: model.SessionID(5 + i)}
		e.SetBusy(2, id, true)
		e.RemoveQueue(2, id)
	}
	a := &e.agenda
	if len(a.wakes) != 2 || len(a.pending) != 0 || len(a.checks) != 0 || len(e.devices) != 2 {
		t.Errorf("%d wake-ups, %d pending, %d checks, %d devices", len(a.wakes), len(a.pending), len(a.checks), len(e.devices))
	}
	e.Observe(func(*Event) {})
	n := 0
	e.EachPending(func(model.DeviceID) { n++ })
	if n != 2 {
		t.Errorf("an observer ends quiet on %d of 2 devices", n)
	}
	e.Decide(3)
	e.Observe(nil)
	n = 0
	e.EachAlone(func(model.DeviceID, model.QueueID, bool) { n++ })
	if n != 2 {
		t.Errorf("without an observer %d of 2 devices are looked at", n)
	}
}
