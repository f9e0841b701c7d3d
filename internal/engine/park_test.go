// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// TestIdleQueuesAreParked: of 2,000 idle queues nearly none is in the view, whatever their program says
// about them, and each returns with its first work.
func TestIdleQueuesAreParked(t *testing.T) {
	for _, name := range policy.Names() {
		cfg := DefaultConfig()
		cfg.Policy = name
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := model.Time(time.Hour)
		low, high := model.QueueID{Session: 1}, model.QueueID{Session: 2}
		e.AddQueue(now, model.Queue{ID: low, PID: 1, Level: model.LevelBlock, Busy: true})
		e.AddQueue(now, model.Queue{ID: high, PID: 2, Level: model.LevelBlock, Hint: model.Hint{Priority: 10}})
		const n = 2000
		idle := func(i int) model.QueueID { return model.QueueID{Session: 3, Index: uint32(i)} }
		for i := range n {
			e.AddQueue(now, model.Queue{ID: idle(i), PID: 3, Level: model.LevelBlock, Hint: model.Hint{PerQueue: i%2 == 0}})
			if i%200 == 0 {
				e.Decide(now)
			}
		}
		decide := func() { now = now.Add(time.Millisecond); e.Decide(now) }
		inView := func(most int) {
			t.Helper()
			if d := e.devices[0]; d.size() != n+2 || len(d.view.Queues) > most {
				t.Fatalf("%s: %d of %d queues are in the view, want at most %d", name, len(d.view.Queues), d.size(), most)
			}
		}
		decide()
		inView(parkAbove)
		// Hints about them change nothing.
		e.SetHint(now, 3, model.Hint{Priority: -5, SLO: model.SLO{Latency: time.Millisecond}})
		e.SetQueueHint(now, idle(7), model.Hint{Priority: 3, SLO: model.SLO{Latency: time.Millisecond}})
		decide()
		inView(parkAbove)
		// One that has work competes, with its current hint.
		e.SetBusy(now, idle(7), true)
		decide()
		r := e.queues[idle(7)]
		if r.parked != nil || r.dev.queue(r).Hint.Priority != 3 {
			t.Fatalf("%s: parked with work: %+v", name, r)
		}
		e.SetBusy(now, idle(7), false)
		for range 2 * parkAfter / time.Millisecond {
			decide()
		}
		inView(parkAbove + 1)
		if s := e.devices[0].service(3); s == nil {
			t.Errorf("%s: the latency target of a process whose queues are parked is forgotten", name)
		}
		// A mode without suspensions lets parked queues run.
		if err := e.SetMode(model.ModeOff, 0); err != nil {
			t.Fatal(err)
		}
		decide()
		for _, s := range e.Snapshot(now) {
			if s.Desired.Suspend != 0 {
				t.Fatalf("%s: suspended in mode off: %+v", name, s)
			}
		}
		for i := range n {
			e.RemoveQueue(now, idle(i))
		}
		decide()
		if d := e.devices[0]; d.size() != 2 || len(d.parkedTargets) != 0 {
			t.Errorf("%s: %d queues and %d targets are left", name, d.size(), len(d.parkedTargets))
		}
	}
}

// TestParkedQueueIsSuspended: at Lv1 the first launch of a parked queue waits for a decision.
func TestParkedQueueIsSuspended(t *testing.T) {
	e, high := crowd(t, 2*parkAbove, func(c *Config) { c.Mode, c.ForceLevel = model.ModeLevel, model.LevelBlock }, 1, 10)
	now := model.Time(time.Hour)
	id := model.QueueID{Session: 5000}
	e.AddQueue(now, model.Queue{ID: id, PID: 5000, Level: model.LevelBlock, Hint: model.Hint{Priority: -5}})
	e.SetBusy(now, high, true)
	e.Decide(now)
	r := e.queues[id]
	if r.parked == nil || r.sent.Suspend != model.LevelBlock {
		t.Fatalf("%+v, parked %v", r.sent, r.parked)
	}
	e.SetBusy(now, id, true)
	e.Decide(now)
	if r.parked != nil || r.sent.Suspend != model.LevelBlock {
		t.Errorf("runs beside a higher one: %+v", r.sent)
	}
	e.SetBusy(now, id, false)
	e.SetBusy(now, high, false)
	e.Decide(now)
}

// TestServiceStaysInView: beside a crowd, a service that has been idle for long is still known. Its
// next request finds the jobs as they are beside a service.
func TestServiceStaysInView(t *testing.T) {
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	now := model.Time(time.Hour)
	high := model.QueueID{Session: 1}
	for i := range 2 * parkAbove {
		e.AddQueue(now, model.Queue{ID: model.QueueID{Session: model.SessionID(i + 2)}, PID: i + 2, Level: model.LevelInterrupt, Slices: true, Busy: true})
	}
	e.AddQueue(now, model.Queue{ID: high, PID: 1, Level: model.LevelInterrupt, Slices: true, Hint: model.Hint{Priority: 10}})
	for range 5 * parkAfter / parkPeriod {
		now = now.Add(parkPeriod)
		e.Decide(now)
	}
	if e.queues[high].parked != nil {
		t.Fatal("the idle service is parked")
	}
	running := 0
	for _, s := range e.Snapshot(now) {
		if s.Queue.PID != 1 && s.Desired.Suspend == 0 {
			running++
		}
	}
	if running != 1 {
		t.Errorf("%d jobs run beside an idle service, want one", running)
	}
}

// BenchmarkDecideIdle16000 is a decision beside 16,000 idle queues of another program.
func BenchmarkDecideIdle16000(b *testing.B) {
	e, err := New(DefaultConfig())
	if err != nil {
		b.Fatal(err)
	}
	now, busy := model.Time(time.Hour), false
	for i := range 16000 {
		e.AddQueue(now, model.Queue{ID: model.QueueID{Session: 3, Index: uint32(i)}, PID: 3, Level: model.LevelInterrupt, Slices: true})
	}
	high := model.QueueID{Session: 1}
	e.AddQueue(now, model.Queue{ID: high, PID: 1, Level: model.LevelInterrupt, Slices: true, Hint: model.Hint{Priority: 10}})
	for b.Loop() {
		now, busy = now.Add(time.Millisecond), !busy
		e.SetBusy(now, high, busy)
		e.Decide(now)
	}
}

// TestSlotOfParkedQueueIsReused: what a parked queue would get does not reach the next one with its ID.
func TestSlotOfParkedQueueIsReused(t *testing.T) {
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	now := model.Time(time.Hour)
	id := func(i int) model.QueueID { return model.QueueID{Session: 1, Index: uint32(i)} }
	for i := range parkAbove + 10 {
		e.AddQueue(now, model.Queue{ID: id(i), PID: 1, Level: model.LevelDeactivate})
	}
	e.Decide(now)
	if e.queues[id(parkTop)].parked == nil {
		t.Fatal("the queue is not parked")
	}
	e.SetLevel(now, id(parkTop), model.LevelBlock, model.LevelBlock, false)
	e.RemoveQueue(now, id(parkTop))
	e.AddQueue(now, model.Queue{ID: id(parkTop), PID: 1, Level: model.LevelBlock, Busy: true})
	changes, _ := e.Decide(now)
	last := model.Desired{Queue: id(parkTop)}
	for _, c := range changes {
		if c.Queue == id(parkTop) {
			last = c
		}
	}
	if last != e.queues[id(parkTop)].sent || last.Suspend != 0 {
		t.Errorf("the new queue got %+v, the engine assumes %+v", last, e.queues[id(parkTop)].sent)
	}
}
