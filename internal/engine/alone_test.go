// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// TestAlone: changes of a queue that is alone never affect a decision, and the
// queue stays alone.
func TestAlone(t *testing.T) {
	n := min(*histories/4, 2000)
	if raceEnabled || testing.Short() {
		n = 100
	}
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := 0
			for seed := range uint64(n) {
				s := seeded{rand.New(rand.NewPCG(seed, uint64(policy.Number(name)))), t, seed}
				m := newMachine(s, name, false)
				for range 1 + s.pick("steps", 20) {
					m.step()
					m.decide()
					found += m.flip()
				}
			}
			if found < n/4 {
				t.Errorf("only %d queues were alone in %d histories", found, n)
			}
		})
	}
}

// flip toggles the work of the queues that are alone.
func (m *machine) flip() int {
	var alone []model.QueueID
	m.e.EachAlone(func(_ model.DeviceID, id model.QueueID, is bool) {
		if is {
			alone = append(alone, id)
		}
	})
	for _, id := range alone {
		told := m.told[id]
		for range 1 + m.pick("flips", 6) {
			m.now = m.now.Add(pickOf(m, "gap", 0, us, 20*us, 3*ms, 40*ms, 3*time.Second))
			for i := range m.queues {
				if q := &m.queues[i]; q.ID == id {
					q.Busy = !q.Busy
					m.e.SetBusy(m.now, id, q.Busy)
				}
			}
			m.decide()
			if m.told[id] != told || !m.e.Alone(id) {
				m.Fatalf("%s: alone, told %+v, now %+v, alone %v", m.e, told, m.told[id], m.e.Alone(id))
			}
		}
	}
	return len(alone)
}

func TestNotAlone(t *testing.T) {
	first := model.QueueID{Session: 1}
	for name, c := range map[string]struct {
		hint model.Hint
		do   func(e *Engine)
		want bool
	}{
		"by itself":       {want: true},
		"its own size":    {hint: model.Hint{Timeslice: ms, Nice: 3, WindowActive: true, Utilization: 100}, want: true},
		"another device":  {do: func(e *Engine) { e.AddQueue(1, model.Queue{ID: model.QueueID{Session: 2}, PID: 2, Device: 9}) }, want: true},
		"another process": {do: func(e *Engine) { e.AddQueue(1, model.Queue{ID: model.QueueID{Session: 2}, PID: 2, Device: 8}) }},
		"its own other queue": {do: func(e *Engine) {
			e.AddQueue(1, model.Queue{ID: model.QueueID{Session: 1, Index: 1}, PID: 1, Device: 8})
		}},
		"somebody unknown":     {do: func(e *Engine) { e.SetUnmanaged(1, 8, true) }, want: true},
		"held":                 {do: func(e *Engine) { e.SetHeld(1, 1, true) }},
		"observed":             {do: func(e *Engine) { e.Observe(func(*Event) {}) }},
		"removed":              {do: func(e *Engine) { e.RemoveQueue(1, first) }},
		"a target":             {hint: model.Hint{SLO: model.SLO{Latency: ms}}},
		"a gang":               {hint: model.Hint{Gang: "g"}},
		"a share":              {hint: model.Hint{Utilization: 30}},
		"a deadline":           {hint: model.Hint{Deadline: ms}},
		"a laxity":             {hint: model.Hint{Laxity: ms}},
		"of a priority to die": {hint: model.Hint{Priority: model.PriorityNever}},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := New(DefaultConfig())
			if err != nil {
				t.Fatal(err)
			}
			e.AddQueue(0, model.Queue{ID: first, PID: 1, Device: 8, Hint: c.hint, Level: model.LevelBlock, Busy: true})
			if e.Alone(first) {
				t.Error("alone before anything was decided")
			}
			e.Decide(0)
			if c.do != nil {
				c.do(e)
			}
			e.Decide(1)
			each := 0
			e.EachAlone(func(_ model.DeviceID, id model.QueueID, alone bool) {
				if alone && id == first {
					each++
				}
			})
			if got := e.Alone(first); got != c.want || each != map[bool]int{true: 1}[c.want] {
				t.Errorf("alone %v, listed %d times, want %v", got, each, c.want)
			}
		})
	}
}

// A starvation grant ends when its queue goes idle, even if all others have left.
func TestNotAloneInAGrant(t *testing.T) {
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	high, low := model.QueueID{Session: 1}, model.QueueID{Session: 2}
	e.AddQueue(0, model.Queue{ID: high, PID: 1, Device: 8, Hint: model.Hint{Priority: 10}, Level: model.LevelInterrupt, Slices: true, Busy: true})
	e.AddQueue(0, model.Queue{ID: low, PID: 2, Device: 8, Level: model.LevelInterrupt, Slices: true, Busy: true})
	now := model.Time(0)
	for _, wake := e.Decide(now); !e.devices[0].state.Granted(); _, wake = e.Decide(now) {
		if now = wake; now > model.Time(time.Minute) {
			t.Fatal("it starves")
		}
	}
	now++
	e.RemoveQueue(now, high)
	_, wake := e.Decide(now)
	if e.Alone(low) || wake == model.Never {
		t.Errorf("alone %v in the middle of its quantum, which is looked at again at %v", e.Alone(low), wake)
	}
	for limit := now.Add(time.Minute); !e.Alone(low) && wake < limit; {
		_, wake = e.Decide(wake)
	}
	if !e.Alone(low) {
		t.Error("not alone after it")
	}
}
