// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// source makes choices: a rapid test, which can shrink them, or a seeded generator, which is
// a hundred times faster.
type source interface {
	fataler
	pick(what string, n int) int
}

type rapidSource struct{ *rapid.T }

func (s rapidSource) pick(what string, n int) int { return rapid.IntRange(0, n-1).Draw(s.T, what) }

type seeded struct {
	*rand.Rand
	testing.TB
	seed uint64
}

func (s seeded) pick(_ string, n int) int { return s.IntN(n) }

func (s seeded) Fatalf(format string, args ...any) {
	s.TB.Helper()
	s.TB.Fatalf("history %d: "+format, append([]any{s.seed}, args...)...)
}

func (s seeded) Fatal(args ...any) {
	s.TB.Helper()
	s.TB.Fatal(append([]any{"history", s.seed}, args...)...)
}

func pickOf[T any](s source, what string, of ...T) T { return of[s.pick(what, len(of))] }

// machine is an engine, a second one that must answer the same, a third one
// that is rebuilt all the time, and what a device would have been told.
type machine struct {
	source
	e       *Engine
	twin    *Engine // may be nil, and rebuilt with it
	rebuilt *Engine
	only    string // the policy, if it does not change
	now     model.Time
	wake    model.Time
	queues  []model.Queue
	told    map[model.QueueID]model.Desired
	serial  model.SessionID
}

func newMachine(s source, only string, twins bool) *machine {
	m := &machine{source: s, only: only, told: map[model.QueueID]model.Desired{}, now: model.Time(time.Hour), wake: model.Never}
	cfg := m.config()
	for _, e := range []**Engine{&m.e, &m.twin, &m.rebuilt} {
		var err error
		if *e, err = New(cfg); err != nil {
			s.Fatal(err)
		}
		if !twins {
			break
		}
	}
	return m
}

func (m *machine) all(f func(*Engine)) {
	f(m.e)
	if m.twin != nil {
		f(m.twin)
		f(m.rebuilt)
	}
}

func (m *machine) config() Config {
	cfg := DefaultConfig()
	if cfg.Policy = m.only; m.only == "" {
		cfg.Policy = pickOf(m, "policy", policy.Names()...)
	}
	cfg.Mode = pickOf(m, "mode", append([]model.Mode{model.ModeLive, model.ModeLive, model.ModeSuspend}, model.Modes...)...)
	cfg.ForceLevel = model.Level(1 + m.pick("force", 3))
	cfg.StarvationBound = pickOf(m, "bound", 0, 100*ms, 2*time.Second)
	cfg.Hold = pickOf(m, "hold", 0, 500*us)
	return cfg
}

func (m *machine) hint() model.Hint {
	h := model.Hint{Priority: pickOf[model.Priority](m, "priority", model.PriorityNever, -5, 0, 0, 0, 3, 10)}
	for range m.pick("hints", 3) {
		switch m.pick("hint", 10) {
		case 0:
			h.Utilization = pickOf(m, "utilization", 1, 25, 75, 100)
		case 1:
			h.Deadline = pickOf(m, "deadline", ms, 50*ms)
		case 2:
			h.Laxity, h.CriticalPriority = pickOf(m, "laxity", ms, 50*ms), 50
		case 3:
			h.K = 1 + m.pick("k", 3)
		case 4:
			h.WindowActive = true
		case 5:
			h.Nice = pickOf(m, "nice", model.NiceMin, -1, 1, model.NiceMax)
		case 6:
			h.SLO.Latency = pickOf(m, "slo", ms, 20*ms)
		case 7:
			h.Timeslice = pickOf(m, "timeslice", 100*us, 20*ms, 10*time.Second)
		case 8:
			h.Gang = pickOf(m, "gang", "a", "b")
		case 9:
			h.PerQueue = true
		}
	}
	return h
}

// add makes a queue, now and then a second one of a process.
func (m *machine) add() {
	m.serial++
	q := model.Queue{
		ID: model.QueueID{Session: m.serial}, PID: 100 + int(m.serial), Hint: m.hint(), Device: model.DeviceID(m.pick("device", 2)),
		Level: model.Level(1 + m.pick("level", 3)), Slices: m.pick("slices", 4) > 0, Busy: m.pick("busy", 2) > 0, Guessed: m.pick("guessed", 8) == 1,
	}
	if len(m.queues) > 0 && m.pick("sibling", 6) == 0 {
		o := &m.queues[m.pick("which", len(m.queues))]
		q.PID, q.Hint, q.Held = o.PID, o.Hint, o.Held
		q.ID = model.QueueID{Session: o.ID.Session, Index: uint32(m.serial)}
	}
	m.queues = append(m.queues, q)
	m.all(func(e *Engine) {
		e.AddQueue(m.now, q)
		e.SetHeld(m.now, q.PID, q.Held)
	})
}

// step does one random thing.
func (m *machine) step() {
	before := m.now
	m.now = m.now.Add(pickOf(m, "step", 0, 20*us, 400*us, 3*ms, 40*ms, time.Second))
	if m.pick("punctual", 2) > 0 && before <= m.wake && m.wake < m.now {
		m.now = m.wake
	}
	kind := m.pick("event", 18)
	if len(m.queues) == 0 || kind < 2 {
		m.add()
		return
	}
	q := &m.queues[m.pick("which", len(m.queues))]
	switch kind {
	case 2:
		id := q.ID
		m.all(func(e *Engine) { e.RemoveQueue(m.now, id) })
		m.queues = slices.DeleteFunc(m.queues, func(o model.Queue) bool { return o.ID == id })
		delete(m.told, id)
	case 3, 4:
		pid, held, hint := q.PID, !q.Held, m.hint()
		for i := range m.queues {
			if o := &m.queues[i]; o.PID == pid && kind == 3 {
				o.Held = held
			} else if o.PID == pid {
				o.Hint = hint
			}
		}
		m.all(func(e *Engine) {
			if kind == 3 {
				e.SetHeld(m.now, pid, held)
			} else {
				e.SetHint(m.now, pid, hint)
			}
		})
	case 5:
		cfg := m.config()
		m.all(func(e *Engine) {
			if err := e.SetMode(cfg.Mode, cfg.ForceLevel); err != nil {
				m.Fatal(err)
			}
		})
	case 6:
		name := m.config().Policy
		m.all(func(e *Engine) {
			if err := e.SetPolicy(name); err != nil {
				m.Fatal(err)
			}
		})
	case 7:
		q.Level, q.Slices = model.Level(1+m.pick("level", 3)), m.pick("slices", 2) > 0
		m.all(func(e *Engine) { e.SetLevel(m.now, q.ID, q.Level, q.Slices) })
	case 8:
		switch m.pick("rare", 3) {
		case 0:
			begin := m.pick("begin", 2) > 0
			m.all(func(e *Engine) { e.MarkRequest(m.now, q.PID, begin) })
		case 1:
			there := m.pick("unmanaged", 2) > 0
			m.all(func(e *Engine) { e.SetUnmanaged(m.now, q.Device, there) })
		case 2:
			hint := m.hint()
			q.Hint = hint
			q.Hint.PerQueue = true
			m.all(func(e *Engine) { e.SetQueueHint(m.now, q.ID, hint) })
		}
	default:
		q.Busy = !q.Busy
		m.all(func(e *Engine) { e.SetBusy(m.now, q.ID, q.Busy) })
	}
}

// decide asks the engines and carries out the changes.
func (m *machine) decide() {
	if m.twin != nil {
		for k, d := range m.e.devices {
			if d.dirty || m.now >= d.wake {
				m.rebuilt.devices[k].restructure()
			}
		}
	}
	changes, wake := m.e.Decide(m.now)
	if wake <= m.now {
		m.Fatalf("wake %d is not after now %d", wake, m.now)
	}
	for k, c := range changes {
		for _, o := range changes[:k] {
			if c.Queue == o.Queue {
				m.Fatalf("queue %v twice in one answer", c.Queue)
			}
		}
		if old, known := m.told[c.Queue]; known && old == c {
			m.Fatalf("%v is no change", c)
		}
		m.told[c.Queue] = c
	}
	m.wake = wake
	if m.twin == nil {
		return
	}
	again, wake2 := m.twin.Decide(m.now)
	if !slices.Equal(changes, again) || wake != wake2 {
		m.Fatalf("not deterministic:\n%v %v\n%v %v", changes, wake, again, wake2)
	}
	// A rebuild from nothing must come to the same plan as the changes in place.
	other, _ := m.rebuilt.Decide(m.now)
	if !slices.Equal(sorted(changes), sorted(other)) {
		m.Fatalf("%s: in place %v, rebuilt %v", m.e, changes, other)
	}
}

func sorted(changes []model.Desired) []model.Desired {
	return slices.SortedFunc(slices.Values(changes), func(a, b model.Desired) int {
		return cmp.Or(cmp.Compare(a.Queue.Session, b.Queue.Session), cmp.Compare(a.Queue.Index, b.Queue.Index))
	})
}

// check holds the last decision to the rules.
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
		// What looks idle may have work of the driver's own, which must not wait for ever.
		if s.Desired.Suspend > model.LevelBlock && !s.Queue.Busy && !s.Queue.Held && !s.Queue.Guessed {
			t.Fatalf("idle and stopped by hardware: %+v", s)
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

// checkGangs: all or none, where anybody may be stopped.
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
			if together && a.Running != b.Running {
				m.Fatalf("not together under %s:\n%+v\n%+v", m.e, states[i], states[j])
			}
		}
	}
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
	case cfg.Mode != model.ModeLevel && d.Suspend != 0 && d.Suspend != q.Level:
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
	granted := dev.view.Grant.Active
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
		if q.Running && dev.view.Ready.Has(i) && s.Desired.Slice != 0 && s.Desired.Slice < policy.UsefulSlice {
			tiny++
		}
		if dev.view.Ready.Has(i) { // a gang that waits elsewhere is not
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
		checkLimits(t, cfg, states)
	}
}

// wants is 1 for a ready queue that must not wait beside an idle device: under SPUP who has had its share may.
func wants(cfg Config, q *model.Queue) int {
	if cfg.Policy == "SPUP" && q.Hint.Utilization > 0 && q.Hint.Utilization < model.UtilizationMax {
		return 0
	}
	return 1
}

// checkTurns: whoever has a turn while an equal waits is asked again when it ends.
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

// checkLimits: at Lv1 the limits are there before the high has work.
func checkLimits(t source, cfg Config, states []QueueState) {
	if cfg.Mode == model.ModeTimeslice || cfg.Policy != "HPF" && cfg.Policy != "FIFO" {
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

// stable says that one decision is all it takes: a grant or a gang may need two, and what
// a plan stops is charged when it is in force.
func (m *machine) stable() bool {
	for _, d := range m.e.devices {
		if len(d.view.Groups) > 0 {
			return false
		}
	}
	cfg := m.e.Config()
	return cfg.StarvationBound == 0 && cfg.Policy != "MLFQ" && cfg.Policy != "SPUP"
}

// again: to be asked twice changes nothing.
func (m *machine) again() {
	ask := func(e *Engine) {
		for _, d := range e.devices {
			d.dirty = true
		}
	}
	m.all(ask) // also where time alone has changed something
	m.decide()
	m.all(func(e *Engine) {
		ask(e)
		if changes, _ := e.Decide(m.now); len(changes) > 0 {
			m.Fatalf("asked again under %s: %v", e, changes)
		}
	})
	m.wake = model.Never
	for _, d := range m.e.devices {
		m.wake = min(m.wake, d.wake)
	}
}

// run makes a history and checks every decision of it.
func (m *machine) run(steps int) {
	for range steps {
		m.step()
		if m.pick("decide", 4) > 0 {
			m.decide()
			m.check()
			if m.stable() && m.pick("again", 8) == 0 {
				m.again()
			}
		}
	}
}

func TestRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapidSource{t}
		newMachine(s, "", true).run(1 + s.pick("steps", 60))
	})
}

var histories = flag.Int("histories", 10000, "generated histories for each policy")

// historyCount is what a run can bear: with the race detector or -short a sample of the histories.
func historyCount() uint64 {
	if raceEnabled || testing.Short() {
		return uint64(min(*histories, 300))
	}
	return uint64(*histories)
}

// TestHistories is TestRules for each policy, many times.
func TestHistories(t *testing.T) {
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(seed uint64) {
				s := seeded{rand.New(rand.NewPCG(seed, uint64(policy.Number(name)))), t, seed}
				newMachine(s, name, true).run(1 + s.pick("steps", 40))
			}
			for seed := range historyCount() {
				run(seed)
			}
			// Turns that were longer by what their queue had waited before.
			if seed, ok := map[string]uint64{"AWF": 12963, "HPF": 31515, "HHPF": 27879}[name]; ok {
				run(seed)
			}
		})
	}
}

// FuzzHints: whatever passes the check does no harm to any policy.
func FuzzHints(f *testing.F) {
	f.Add(0, 50, int64(5*ms), int64(20*ms), 2, int64(ms), -3, "g", int64(20*ms), 99.0, false)
	f.Add(-256, 100, int64(time.Second), int64(0), 0, int64(0), 19, "", int64(1), 1.0, true)
	f.Fuzz(func(t *testing.T, prio, util int, slice, deadline int64, k int, laxity int64, nice int, gang string, slo int64, p float64, perQueue bool) {
		h := model.Hint{
			Priority: model.Priority(prio), Utilization: util, Timeslice: time.Duration(slice), Deadline: time.Duration(deadline), K: k,
			Laxity: time.Duration(laxity), Nice: nice, Gang: gang, SLO: model.SLO{Latency: time.Duration(slo), Percentile: p}, PerQueue: perQueue,
		}
		if h.Check() != nil {
			return
		}
		for _, name := range policy.Names() {
			cfg := DefaultConfig()
			cfg.Policy = name
			e, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				q := model.Queue{ID: model.QueueID{Session: model.SessionID(i + 1)}, PID: i + 1, Level: model.LevelInterrupt, Slices: i > 0, Busy: true}
				if i < 2 {
					q.Hint = h
				}
				e.AddQueue(simStart, q)
			}
			now := simStart
			for range 20 {
				_, wake := e.Decide(now)
				if wake <= now {
					t.Fatalf("%s: wake %v is not after now", name, wake.Sub(now))
				}
				now = min(wake, now.Add(20*ms))
				e.SetBusy(now, model.QueueID{Session: 1}, now%2 == 0)
			}
		}
	})
}
