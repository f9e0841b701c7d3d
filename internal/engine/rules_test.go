// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// check verifies the rules for the last decision.
func (m *machine) check() {
	t := m.source
	cfg, states := m.e.Config(), m.e.Snapshot(m.now)
	if len(states) != len(m.queues) {
		t.Fatalf("%d queues, %d states", len(m.queues), len(states))
	}
	device := map[model.DeviceID][]QueueState{}
	for _, s := range states {
		if told := m.told[s.Queue.ID]; told != s.Desired && (told != model.Desired{} || s.Desired != model.Desired{Queue: s.Queue.ID}) {
			t.Fatalf("device was told %+v, engine wants %+v", told, s.Desired)
		}
		stopped := s.Desired.Suspend != 0
		if s.Queue.Running && stopped || !s.Queue.Running && !stopped && (s.Queue.Busy || s.Queue.Held || s.Queue.Guessed) {
			t.Fatalf("running %v, busy %v, but desired %+v", s.Queue.Running, s.Queue.Busy, s.Desired)
		}
		// An idle queue may have work of the driver's own, which must not be blocked.
		if s.Desired.Suspend > model.LevelBlock && !s.Queue.Busy && !s.Queue.Held && !s.Queue.Guessed {
			t.Fatalf("idle and stopped by hardware: %+v", s)
		}
		if s.Parked {
			if q := &s.Queue; q.Busy || q.Held || q.Guessed || q.Hint.Gang != "" {
				t.Fatalf("parked: %+v", s)
			}
			continue
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
	m.checkGangs(cfg, states)
}

// checkGangs: where queues may be suspended, all members of a gang run or none.
func (m *machine) checkGangs(cfg Config, states []QueueState) {
	if cfg.Mode == model.ModeTimeslice {
		return
	}
	for i := range states {
		a := &states[i].Queue
		for j := range states[:i] {
			b := &states[j].Queue
			together := a.Hint.Gang == b.Hint.Gang && a.Hint.Gang != "" ||
				a.Hint.Gang == "" && b.Hint.Gang == "" && a.PID == b.PID && a.Device == b.Device && !a.Hint.PerQueue && !b.Hint.PerQueue
			if a.Hint.Gang != "" && m.contested() {
				continue // another user's queue may split the gang on any of its devices
			}
			if together && a.Running != b.Running && !states[i].Parked && !states[j].Parked {
				m.Fatalf("not together under %s:\n%+v\n%+v", m.e, states[i], states[j])
			}
		}
	}
}

// contested reports whether any queue is.
func (m *machine) contested() bool {
	for _, d := range m.e.devices {
		for i := range d.view.Queues {
			if d.view.Queues[i].Contested {
				return true
			}
		}
	}
	return false
}

func checkMode1(t source, cfg Config, s QueueState) {
	q, d := &s.Queue, s.Desired
	eligible := !q.Held && q.Hint.Priority > model.PriorityNever
	switch {
	case q.Held && d.Suspend == 0:
		t.Fatalf("held and running: %+v", s)
	case q.Hint.Priority == model.PriorityNever && d.Suspend == 0 && q.Busy && cfg.Mode != model.ModeOff:
		t.Fatalf("priority never and running: %+v", s)
	case cfg.Mode == model.ModeOff && !q.Held && d != model.Desired{Queue: q.ID}:
		t.Fatalf("mode off and not native: %+v", d)
	case cfg.Mode == model.ModeTimeslice && eligible && (d.Suspend != 0 || d.InFlight != 0):
		t.Fatalf("mode timeslice stops or limits: %+v", d)
	case (cfg.Mode == model.ModeSuspend || cfg.Mode == model.ModeLevel) && d.Slice != 0:
		t.Fatalf("mode %s sets slices: %+v", cfg.Mode, d)
	case cfg.Mode == model.ModeLevel && d.Suspend != 0 && d.Suspend != cfg.ForceLevel && (q.Busy || q.Level != model.LevelBlock || d.Suspend != model.LevelBlock):
		t.Fatalf("forced level %v: %+v", cfg.ForceLevel, d)
	case cfg.Mode != model.ModeLevel && d.Suspend != 0 && d.Suspend != q.Level && !(q.Hint.Cap.On && d.Suspend == max(q.Level, q.Best)):
		t.Fatalf("level %v: %+v", q.Level, d)
	case d.Slice != 0 && !q.Slices:
		t.Fatalf("a slice where there are none: %+v", d)
	}
}

func checkDevice(t source, cfg Config, e *Engine, now model.Time, states []QueueState) {
	var dev *device
	for _, d := range e.devices {
		if d.id == states[0].Queue.Device {
			dev = d
		}
	}
	granted := dev.state.Granted()
	ranked := slices.Contains([]string{"HPF", "HHPF", "CHPF", "AWF"}, cfg.Policy) && len(dev.view.Groups) == 0
	tiny, ready, served, holding := 0, 0, false, false
	top := model.PriorityNever
	for i := range states {
		if states[i].Queue.Eligible() {
			top = max(top, states[i].Queue.Rank)
		}
	}
	for i := range states {
		s := &states[i]
		q := &s.Queue
		if q.Running && dev.view.Queues[i].Ready && s.Desired.Slice != 0 && s.Desired.Slice < policy.UsefulSlice {
			tiny++
		}
		if dev.view.Queues[i].Ready { // a gang that waits elsewhere is not
			ready += wants(cfg, q)
			served = served || q.Running
		} else if now < q.ChangedAt.Add(cfg.Hold) {
			holding = true
		}
		if !ranked || !q.Running || q.Hint.Priority == model.PriorityNever {
			continue
		}
		for j := range states[:i] { // the higher ones
			h := &states[j]
			if !h.Queue.Ready() || h.Queue.Rank == q.Rank || granted {
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
	if ranked && cfg.Mode != model.ModeTimeslice && !granted {
		checkTurns(t, cfg, now, dev.wake, top, states)
	}
	if len(dev.view.Groups) == 0 {
		checkLimits(t, cfg, dev, states)
	}
}

// wants is 1 for a ready queue that must not wait beside an idle device. Under SPUP a
// queue that used its share may.
func wants(cfg Config, q *model.Queue) int {
	if cfg.Policy == "SPUP" && q.Hint.Utilization > 0 && q.Hint.Utilization < model.UtilizationMax {
		return 0
	}
	return 1
}

// checkTurns: a turn has an end while an equal queue waits.
func checkTurns(t source, cfg Config, now, wake model.Time, top model.Priority, states []QueueState) {
	for i := range states {
		q := &states[i].Queue
		if !q.Ready() || !q.Running || states[i].Waiting || q.Rank == top {
			continue
		}
		for j := range states {
			o := &states[j].Queue
			if o.Ready() && !o.Running && o.Hint.Priority > model.PriorityNever && o.Rank == q.Rank && wake > now.Add(cfg.Quantum) {
				t.Fatalf("a turn without end: %+v", states)
			}
		}
	}
}

// checkLimits: at Lv1 the limits are in force before the high-priority queue has work.
func checkLimits(t source, cfg Config, dev *device, states []QueueState) {
	if cfg.Mode == model.ModeTimeslice || cfg.Policy != "HPF" && cfg.Policy != "FIFO" {
		return
	}
	others := 0
	top := model.PriorityNever
	for i := range states {
		if q := &states[i].Queue; !q.Held && q.Hint.Priority > model.PriorityNever {
			others++
			top = max(top, q.Rank)
		}
	}
	for i := range states {
		q, d := &states[i].Queue, states[i].Desired
		level := q.Level
		if dev.view.Queues[i].Contested {
			level = max(level, q.Best)
		}
		if cfg.Mode == model.ModeLevel {
			level = cfg.ForceLevel
		}
		eligible := !q.Held && q.Hint.Priority > model.PriorityNever
		want := eligible && level == model.LevelBlock &&
			(cfg.Policy == "HPF" && q.Rank < top || cfg.Policy == "FIFO" && others > 1)
		if got := d.InFlight != 0; got != want {
			t.Fatalf("limits %v, want %v: %+v", got, want, states[i])
		}
	}
}
