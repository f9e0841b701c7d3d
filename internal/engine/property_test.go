// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// machine is an engine, a second one that must answer the same, a third one
// that is rebuilt all the time, and what a device would have been told.
type machine struct {
	e, twin *Engine
	rebuilt *Engine
	now     model.Time
	wake    model.Time
	queues  []model.Queue
	told    map[model.QueueID]model.Desired
	serial  model.SessionID
}

func (m *machine) both(f func(*Engine)) { f(m.e); f(m.twin); f(m.rebuilt) }

func genConfig(t *rapid.T) Config {
	cfg := DefaultConfig()
	cfg.Policy = rapid.SampledFrom(policy.Names()).Draw(t, "policy")
	cfg.Mode = rapid.SampledFrom(model.Modes).Draw(t, "mode")
	cfg.ForceLevel = model.Level(rapid.IntRange(1, 3).Draw(t, "force"))
	cfg.StarvationBound = rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond, 2 * time.Second}).Draw(t, "bound")
	cfg.Hold = rapid.SampledFrom([]time.Duration{0, 500 * time.Microsecond}).Draw(t, "hold")
	return cfg
}

func genHint(t *rapid.T) model.Hint {
	return model.Hint{Priority: rapid.SampledFrom([]model.Priority{model.PriorityNever, -5, 0, 0, 0, 3, 10}).Draw(t, "priority")}
}

// step does one random thing.
func (m *machine) step(t *rapid.T) {
	before := m.now
	m.now += model.Time(rapid.SampledFrom([]time.Duration{
		0, 20 * time.Microsecond, 400 * time.Microsecond, 3 * time.Millisecond, 40 * time.Millisecond, time.Second,
	}).Draw(t, "step"))
	if rapid.Bool().Draw(t, "punctual") && before <= m.wake && m.wake < m.now {
		m.now = m.wake
	}
	kind := rapid.IntRange(0, 15).Draw(t, "event")
	if len(m.queues) == 0 {
		kind = 0
	}
	pick := func() *model.Queue { return &m.queues[rapid.IntRange(0, len(m.queues)-1).Draw(t, "which")] }
	switch kind {
	case 0, 1:
		m.serial++
		q := model.Queue{
			ID: model.QueueID{Session: m.serial}, PID: 100 + int(m.serial), Device: model.DeviceID(rapid.IntRange(0, 1).Draw(t, "device")),
			Hint: genHint(t), Level: model.Level(rapid.IntRange(1, 3).Draw(t, "level")), Slices: rapid.IntRange(0, 3).Draw(t, "slices") > 0,
			Busy: rapid.Bool().Draw(t, "busy"),
		}
		m.queues = append(m.queues, q)
		m.both(func(e *Engine) { e.AddQueue(m.now, q) })
	case 2:
		q := *pick()
		m.both(func(e *Engine) { e.RemoveQueue(m.now, q.ID) })
		m.queues = slices.DeleteFunc(m.queues, func(o model.Queue) bool { return o.ID == q.ID })
		delete(m.told, q.ID)
	case 3:
		q := pick()
		q.Held = !q.Held
		m.both(func(e *Engine) { e.SetHeld(m.now, q.PID, q.Held) })
	case 4:
		q := pick()
		q.Hint = genHint(t)
		m.both(func(e *Engine) { e.SetHint(m.now, q.PID, q.Hint) })
	case 5:
		cfg := genConfig(t)
		m.both(func(e *Engine) {
			if err := e.SetMode(cfg.Mode, cfg.ForceLevel); err != nil {
				t.Fatal(err)
			}
		})
	case 6:
		name := genConfig(t).Policy
		m.both(func(e *Engine) {
			if err := e.SetPolicy(name); err != nil {
				t.Fatal(err)
			}
		})
	case 7:
		q := pick()
		q.Level, q.Slices = model.Level(rapid.IntRange(1, 3).Draw(t, "level")), rapid.Bool().Draw(t, "slices")
		m.both(func(e *Engine) { e.SetLevel(m.now, q.ID, q.Level, q.Slices) })
	default:
		q := pick()
		q.Busy = !q.Busy
		m.both(func(e *Engine) { e.SetBusy(m.now, q.ID, q.Busy) })
	}
}

// decide asks both engines and carries out the changes.
func (m *machine) decide(t *rapid.T) {
	for k, d := range m.e.devices {
		if d.dirty || m.now >= d.wake {
			m.rebuilt.devices[k].restructure()
		}
	}
	changes, wake := m.e.Decide(m.now)
	again, wake2 := m.twin.Decide(m.now)
	if !slices.Equal(changes, again) || wake != wake2 {
		t.Fatalf("not deterministic:\n%v %v\n%v %v", changes, wake, again, wake2)
	}
	if wake <= m.now {
		t.Fatalf("wake %d is not after now %d", wake, m.now)
	}
	seen := map[model.QueueID]bool{}
	for _, c := range changes {
		if seen[c.Queue] {
			t.Fatalf("queue %v twice in one answer", c.Queue)
		}
		seen[c.Queue] = true
		if old, known := m.told[c.Queue]; known && old == c {
			t.Fatalf("%v is no change", c)
		}
		m.told[c.Queue] = c
	}
	m.wake = wake
	// A rebuild from nothing must come to the same plan as the changes in place.
	other, _ := m.rebuilt.Decide(m.now)
	if !slices.Equal(sorted(changes), sorted(other)) {
		t.Fatalf("in place %v, rebuilt %v", changes, other)
	}
}

func sorted(changes []model.Desired) []model.Desired {
	return slices.SortedFunc(slices.Values(changes), func(a, b model.Desired) int {
		return cmp.Compare(a.Queue.Session, b.Queue.Session)
	})
}

// check holds the last decision to the rules.
func (m *machine) check(t *rapid.T) {
	cfg, states := m.e.Config(), m.e.Snapshot(m.now)
	if len(states) != len(m.queues) {
		t.Fatalf("%d queues, %d states", len(m.queues), len(states))
	}
	device := map[model.DeviceID][]QueueState{}
	for _, s := range states {
		if told := m.told[s.Queue.ID]; told != s.Desired && (told != model.Desired{} || s.Desired != model.Desired{Queue: s.Queue.ID}) {
			t.Fatalf("device was told %+v, engine wants %+v", told, s.Desired)
		}
		if s.Queue.Running != (s.Desired.Suspend == 0) {
			t.Fatalf("running %v but desired %+v", s.Queue.Running, s.Desired)
		}
		device[s.Queue.Device] = append(device[s.Queue.Device], s)
	}
	for _, s := range states {
		checkMode1(t, cfg, s)
	}
	if cfg.Mode == model.ModeOff {
		return
	}
	for _, d := range device {
		checkDevice(t, cfg, m.e, m.now, d)
	}
}

func checkMode1(t *rapid.T, cfg Config, s QueueState) {
	q, d := &s.Queue, s.Desired
	eligible := !q.Held && q.Hint.Priority > model.PriorityNever
	switch {
	case q.Held && d.Suspend == 0:
		t.Fatalf("held and running: %+v", s)
	case q.Hint.Priority == model.PriorityNever && d.Suspend == 0 && cfg.Mode != model.ModeOff:
		t.Fatalf("priority never and running: %+v", s)
	case cfg.Mode == model.ModeOff && !q.Held && d != model.Desired{Queue: q.ID}:
		t.Fatalf("mode off and not native: %+v", d)
	case cfg.Mode == model.ModeTimeslice && eligible && (d.Suspend != 0 || d.InFlight != 0):
		t.Fatalf("mode timeslice stops or limits: %+v", d)
	case (cfg.Mode == model.ModeSuspend || cfg.Mode == model.ModeLevel) && d.Slice != 0:
		t.Fatalf("mode %s sets slices: %+v", cfg.Mode, d)
	case cfg.Mode == model.ModeLevel && d.Suspend != 0 && d.Suspend != cfg.ForceLevel:
		t.Fatalf("forced level %v: %+v", cfg.ForceLevel, d)
	case cfg.Mode != model.ModeLevel && d.Suspend != 0 && d.Suspend != q.Level:
		t.Fatalf("level %v: %+v", q.Level, d)
	case d.Slice != 0 && !q.Slices:
		t.Fatalf("a slice where there are none: %+v", d)
	}
}

func checkDevice(t *rapid.T, cfg Config, e *Engine, now model.Time, states []QueueState) {
	var dev *device
	for _, d := range e.devices {
		if d.id == states[0].Queue.Device {
			dev = d
		}
	}
	granted := dev.view.Grant.Active
	tiny, ready, served, holding := 0, 0, false, false
	top := states[0].Queue.Hint.Priority
	for i := len(states) - 1; i >= 0; i-- {
		if !states[i].Queue.Held {
			top = max(top, states[i].Queue.Hint.Priority)
		}
	}
	for i := range states {
		s := &states[i]
		q := &s.Queue
		if q.Running && s.Desired.Slice != 0 && s.Desired.Slice < policy.UsefulSlice {
			tiny++
		}
		if q.Ready() {
			ready++
			served = served || q.Running
		} else if now < q.ChangedAt.Add(cfg.Hold) {
			holding = true
		}
		if cfg.Policy != "HPF" || !q.Running || q.Hint.Priority == model.PriorityNever {
			continue
		}
		for j := range states[:i] { // the higher ones
			h := &states[j]
			if !h.Queue.Ready() || h.Queue.Hint.Priority == q.Hint.Priority || granted {
				continue
			}
			shielded := s.Desired.Slice == cfg.LowSlice && h.Desired.Slice > cfg.NativeSlice
			if cfg.Mode != model.ModeTimeslice && !(h.Queue.Running && shielded) {
				t.Fatalf("runs beside a ready higher one:\nlow  %+v\nhigh %+v", s, h)
			}
		}
	}
	if tiny > 1 {
		t.Fatalf("%d runnable queues with tiny slices: %+v", tiny, states)
	}
	if ready > 0 && !served && !(holding && dev.wake <= now.Add(cfg.Hold)) {
		t.Fatalf("not work-conserving, wake in %v: %+v", dev.wake.Sub(now), states)
	}
	if cfg.Policy == "HPF" && cfg.Mode != model.ModeTimeslice && !granted {
		checkTurns(t, cfg, now, dev.wake, top, states)
	}
	checkLimits(t, cfg, states)
}

// checkTurns: whoever has a turn while an equal waits is asked again when it ends.
func checkTurns(t *rapid.T, cfg Config, now, wake model.Time, top model.Priority, states []QueueState) {
	for i := range states {
		q := &states[i].Queue
		if !q.Ready() || !q.Running || states[i].Waiting || q.Hint.Priority == top {
			continue
		}
		for j := range states {
			o := &states[j].Queue
			if o.Ready() && !o.Running && o.Hint.Priority == q.Hint.Priority && wake > now.Add(cfg.Quantum) {
				t.Fatalf("a turn without end: %+v", states)
			}
		}
	}
}

// checkLimits: at Lv1 the limits are there before the high has work.
func checkLimits(t *rapid.T, cfg Config, states []QueueState) {
	if cfg.Mode == model.ModeTimeslice {
		return
	}
	others := 0
	top := model.PriorityNever
	for i := range states {
		if q := &states[i].Queue; !q.Held && q.Hint.Priority > model.PriorityNever {
			others++
			top = max(top, q.Hint.Priority)
		}
	}
	for i := range states {
		q, d := &states[i].Queue, states[i].Desired
		level := q.Level
		if cfg.Mode == model.ModeLevel {
			level = cfg.ForceLevel
		}
		eligible := !q.Held && q.Hint.Priority > model.PriorityNever
		want := eligible && level == model.LevelBlock &&
			(cfg.Policy == "HPF" && q.Hint.Priority < top || cfg.Policy == "FIFO" && others > 1)
		if got := d.InFlight != 0; got != want {
			t.Fatalf("limits %v, want %v: %+v", got, want, states[i])
		}
	}
}

func TestRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := genConfig(t)
		m := &machine{told: map[model.QueueID]model.Desired{}, now: model.Time(time.Hour), wake: model.Never}
		var err error
		if m.e, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		if m.twin, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		if m.rebuilt, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			m.step(t)
			if rapid.IntRange(0, 3).Draw(t, "decide") > 0 {
				m.decide(t)
				m.check(t)
			}
		}
	})
}
