// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

func TestNew(t *testing.T) {
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultConfig()
	want.StarvationBound, want.Hold = 0, 0 // zero means none for these two
	if !reflect.DeepEqual(e.Config(), want) {
		t.Errorf("got %+v, want %+v", e.Config(), want)
	}
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Policy: "X"}, `unknown policy "X": known are ` + strings.Join(policy.Names(), ", ")},
		{Config{Mode: "fast"}, `unknown mode "fast": known are off, timeslice, suspend, level, live`},
		{Config{Mode: model.ModeLevel}, `mode "level": level 0: must be 1, 2 or 3`},
		{Config{Knobs: policy.Knobs{Quantum: -1}}, "quantum is -1ns: must not be negative"},
		{Config{InFlight: -1}, "limits must not be negative"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want %q", c.cfg, err, c.want)
		}
	}
}

func TestErrorsChangeNothing(t *testing.T) {
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.SetPolicy("nope"); !errors.Is(err, policy.ErrUnknown) {
		t.Errorf("policy: %v", err)
	}
	if err := e.SetMode(model.ModeLevel, 4); err == nil {
		t.Error("level 4 was taken")
	}
	if !reflect.DeepEqual(e.Config(), DefaultConfig()) {
		t.Errorf("configuration became %+v", e.Config())
	}
	// Unknown queues and processes are ignored.
	id := model.QueueID{Session: 9}
	e.SetBusy(1, id, true)
	e.SetLevel(1, id, model.LevelBlock, 0, false)
	e.RemoveQueue(1, id)
	if n := e.SetHint(1, 9, model.Hint{}) + e.SetHeld(1, 9, true); n != 0 {
		t.Errorf("%d queues of an unknown process", n)
	}
	if changes, wake := e.Decide(1); len(changes) != 0 || wake != model.Never {
		t.Errorf("changes %v, wake %v", changes, wake)
	}
}

// TestHeldProcess: new queues of a process suspended by hand are suspended too, on
// every device.
func TestHeldProcess(t *testing.T) {
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	add := func(index uint32, device model.DeviceID) {
		e.AddQueue(simStart, model.Queue{ID: model.QueueID{Session: 1, Index: index}, PID: 7, Device: device, Level: model.LevelInterrupt, Busy: true})
	}
	add(0, 0)
	if n := e.SetHeld(simStart, 7, true); n != 1 {
		t.Fatalf("%d queues", n)
	}
	add(1, 1)
	changes, _ := e.Decide(simStart)
	if len(changes) != 2 || changes[0].Suspend != model.LevelInterrupt || changes[1].Suspend != model.LevelInterrupt {
		t.Errorf("changes %+v", changes)
	}
	if s := e.Stats(); s.Preemptions != [Levels]uint64{} {
		t.Errorf("stopped by hand counts as preemption: %+v", s)
	}
	if n := e.SetHeld(simStart, 7, false); n != 2 {
		t.Errorf("%d queues", n)
	}
	if changes, _ = e.Decide(simStart); len(changes) != 2 || changes[0].Suspend != 0 || changes[1].Suspend != 0 {
		t.Errorf("changes %+v", changes)
	}
}

// TestDevicesAreApart: a busy high-priority queue affects its own device only.
func TestDevicesAreApart(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Mode = model.ModeSuspend
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	id := func(n int) model.QueueID { return model.QueueID{Session: model.SessionID(n)} }
	for n := range 4 {
		e.AddQueue(simStart, model.Queue{
			ID: id(n), PID: n, Device: model.DeviceID(n % 2), Hint: model.Hint{Priority: model.Priority(n / 2)},
			Level: model.LevelInterrupt, Busy: n < 2,
		})
	}
	e.Decide(simStart)
	before := e.Stats().Decisions
	now := simStart.Add(time.Millisecond)
	e.SetBusy(now, id(2), true) // the high of device 0
	changes, _ := e.Decide(now)
	if len(changes) != 1 || changes[0].Queue != id(0) || changes[0].Suspend != model.LevelInterrupt {
		t.Errorf("changes %+v", changes)
	}
	if asked := e.Stats().Decisions - before; asked != 1 {
		t.Errorf("asked about %d devices", asked)
	}

	// kill -9 of the high: the low runs again at once, without Hold.
	e.RemoveQueue(now, id(2))
	changes, _ = e.Decide(now)
	if len(changes) != 1 || changes[0] != (model.Desired{Queue: id(0)}) {
		t.Errorf("changes %+v", changes)
	}
	for n := range 4 {
		e.RemoveQueue(now, id(n))
	}
	if len(e.devices) != 0 || len(e.queues) != 0 || len(e.Snapshot(now)) != 0 {
		t.Error("something is left")
	}
}

// TestLimits: the limits of a hint override the defaults.
func TestLimits(t *testing.T) {
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for n, hint := range []model.Hint{{Priority: 5}, {InFlight: 9, Batch: 3}, {InFlight: 1}} {
		e.AddQueue(simStart, model.Queue{ID: model.QueueID{Session: model.SessionID(n)}, PID: n, Hint: hint, Level: model.LevelBlock, Slices: true})
	}
	e.Decide(simStart)
	got := e.Snapshot(simStart)
	for n, want := range []model.Desired{
		{Slice: time.Second}, // Lv1 is about being stopped: the high has its slice
		{InFlight: 9, Batch: 3},
		{InFlight: 1, Batch: 1, Suspend: model.LevelBlock},
	} {
		want.Queue = got[n].Queue.ID
		if got[n].Desired != want {
			t.Errorf("queue %d: %+v, want %+v", n, got[n].Desired, want)
		}
	}
}

// A level is forced on a queue that supports only the gate: its launches are held
// while it is idle too. Otherwise a program that waits for each launch would never
// find the gate closed.
func TestForcedLevelHoldsTheGate(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Mode, cfg.ForceLevel = model.ModeLevel, model.LevelDeactivate
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	high, gated, low := model.QueueID{Session: 1}, model.QueueID{Session: 2}, model.QueueID{Session: 3}
	e.AddQueue(0, model.Queue{ID: high, PID: 1, Device: 8, Hint: model.Hint{Priority: 5}, Level: model.LevelDeactivate, Busy: true})
	e.AddQueue(0, model.Queue{ID: gated, PID: 2, Device: 8, Level: model.LevelBlock})
	e.AddQueue(0, model.Queue{ID: low, PID: 3, Device: 8, Level: model.LevelDeactivate})
	told := map[model.QueueID]model.Level{}
	decide := func(now model.Time) {
		changes, _ := e.Decide(now)
		for _, d := range changes {
			told[d.Queue] = d.Suspend
		}
	}
	decide(0)
	if told[gated] != model.LevelBlock || told[low] != 0 {
		t.Errorf("idle beside a high: %v", told)
	}
	e.SetBusy(1, gated, true)
	e.SetBusy(1, low, true)
	decide(1)
	if told[gated] != model.LevelDeactivate || told[low] != model.LevelDeactivate {
		t.Errorf("with work beside a high: %v", told)
	}
	e.SetBusy(2, gated, false)
	e.SetBusy(2, low, false)
	e.SetBusy(2, high, false)
	decide(2)
	decide(model.Time(time.Second))
	if told[gated] != 0 || told[low] != 0 {
		t.Errorf("after the high: %v", told)
	}
}
