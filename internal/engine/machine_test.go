// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// source makes random choices: a rapid test, which can shrink them, or a seeded
// generator, which is a hundred times faster.
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

// machine is an engine, a twin that must answer the same, a third one that rebuilds
// its view at every decision, and the desired states a device would have received.
type machine struct {
	source
	e       *Engine
	twin    *Engine // may be nil, and rebuilt with it
	rebuilt *Engine
	only    string // the policy, if it does not change
	capped  bool   // queues belong to three users, two of them with a cap
	// shards are engines that each have the queues of one device only.
	shards map[model.DeviceID]*Engine
	now    model.Time
	wake   model.Time
	queues []model.Queue
	told   map[model.QueueID]model.Desired
	serial model.SessionID
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
	for _, e := range m.shards {
		f(e)
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

// add adds a queue, sometimes of a process that has one already.
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
	if m.capped {
		q.User, q.Best, q.Hint.Cap = string(rune('a'+q.PID%3)), model.LevelInterrupt, m.limit(q.PID)
	}
	m.queues = append(m.queues, q)
	m.all(func(e *Engine) {
		if m.shards == nil || e == m.e || e == m.shards[q.Device] {
			e.AddQueue(m.now, q)
		}
		e.SetHeld(m.now, q.PID, q.Held)
	})
}

// limit derives from the PID, as the user does, so that histories known by their seed
// stay the same.
func (m *machine) limit(pid int) model.Cap {
	if !m.capped {
		return model.Cap{}
	}
	return []model.Cap{{}, {On: true}, {On: true, Priority: 3}}[pid%3]
}

// step makes one random event.
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
		hint.Cap = m.limit(pid)
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
		m.all(func(e *Engine) { e.SetLevel(m.now, q.ID, q.Level, q.Best, q.Slices) })
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
			hint.Cap = m.limit(q.PID)
			q.Hint = hint
			q.Hint.PerQueue = true
			m.all(func(e *Engine) { e.SetQueueHint(m.now, q.ID, hint) })
		}
	default:
		if q.Busy = !q.Busy; q.Busy {
			m.all(func(e *Engine) { e.SetBusy(m.now, q.ID, true) })
			break
		}
		// Derived from the time, so that histories known by their seed stay the same.
		fed := []time.Duration{0, 1, time.Hour, time.Hour, model.NotWaited, time.Hour}[m.now/10_000%6]
		m.all(func(e *Engine) {
			e.SetProgress(m.now, q.ID, model.Progress{Launches: uint64(m.now / 40_000), Bursts: uint64(m.now / 400_000), Waits: m.now/10_000%5 == 0})
		})
		m.all(func(e *Engine) { e.SetIdle(m.now, q.ID, fed) })
	}
}

// decide asks the engines and carries out the changes.
func (m *machine) decide() {
	if m.twin != nil {
		for k, d := range m.e.devices {
			if d.pending || m.now >= d.wake {
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
	// Rebuilding the view must not change the plan.
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

// stable reports that one decision settles everything. A grant or a gang may need
// two, and MLFQ and SPUP charge a queue once its suspension is in force.
func (m *machine) stable() bool {
	for _, d := range m.e.devices {
		if len(d.view.Groups) > 0 {
			return false
		}
	}
	cfg := m.e.Config()
	return cfg.StarvationBound == 0 && cfg.Policy != "MLFQ" && cfg.Policy != "SPUP"
}

// again checks that a second decision at the same time changes nothing.
func (m *machine) again() {
	ask := func(e *Engine) {
		for _, d := range e.devices {
			d.mark()
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
