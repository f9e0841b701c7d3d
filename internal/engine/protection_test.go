// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"testing"
	"time"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// beside returns an engine with a high, so many lows with work, and the requests of the high so far.
func beside(t *testing.T, mode model.Mode, lows int) (*Engine, func(length, fed, period time.Duration)) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Mode = mode
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	add := func(session, prio int) model.QueueID {
		q := model.Queue{
			ID: model.QueueID{Session: model.SessionID(session)}, PID: 100 + session, Device: 1, Level: model.LevelInterrupt,
			Slices: true, Hint: model.Hint{Priority: model.Priority(prio)},
		}
		e.AddQueue(0, q)
		return q.ID
	}
	high := add(1, 10)
	for i := range lows {
		e.SetBusy(0, add(2+i, 0), true)
	}
	now, launches := model.Time(time.Second), uint64(0)
	e.Decide(now)
	return e, func(length, fed, period time.Duration) {
		step := func(until model.Time) {
			for {
				_, wake := e.Decide(now)
				if wake > until {
					break
				}
				now = max(wake, now+1)
			}
			now = until
		}
		start := now
		e.SetBusy(now, high, true)
		step(start.Add(length))
		launches += 1000
		e.SetProgress(now, high, model.Progress{Launches: launches})
		e.SetIdle(now, high, fed)
		step(start.Add(period))
	}
}

func protection(t *testing.T, e *Engine, now model.Time) policy.ProtectionStatus {
	t.Helper()
	all := e.Protections(now, 0)
	if len(all) != 1 || all[0].PID != 101 || all[0].Device != 1 {
		t.Fatalf("accounts %+v, want one of process 101", all)
	}
	return all[0]
}

// TestProtectionAccount: what a request costs lows is what they lose beyond its own device time.
func TestProtectionAccount(t *testing.T) {
	for _, c := range []struct {
		name                string
		mode                model.Mode
		lows                int
		length, fed, period time.Duration
		gain                time.Duration // at P99
		cost                float64
	}{
		{"slices", model.ModeLive, 1, 3 * ms, 1, 10 * ms, 4600 * us, 0},
		{"slices, three lows", model.ModeLive, 3, 3 * ms, 1, 10 * ms, 13400 * us, 0},
		{"suspended, with a hold", model.ModeSuspend, 1, 3 * ms, 1, 10 * ms, 4600 * us, 0.01},
		{"suspended while it submits", model.ModeSuspend, 1, 6 * ms, 5800 * us, 50 * ms, 2200 * us, 0.118},
		{"no low has work", model.ModeLive, 0, 3 * ms, 1, 10 * ms, 0, 0},
	} {
		e, request := beside(t, c.mode, c.lows)
		if c.lows == 0 {
			e.AddQueue(0, model.Queue{ID: model.QueueID{Session: 9}, PID: 109, Device: 1, Level: model.LevelInterrupt, Slices: true})
			e.Decide(0)
		}
		for range 200 {
			request(c.length, c.fed, c.period)
		}
		p := protection(t, e, model.Time(time.Second).Add(200*c.period))
		if gain := p.Gain(); math.Abs(float64(gain-c.gain)) > 0.05*float64(p.NativeP99) || math.Abs(p.CostShare-c.cost) > 0.005 {
			t.Errorf("%s: gains %v at P99 and costs %.3f, want %v and %.3f (%+v)", c.name, gain, p.CostShare, c.gain, c.cost, p)
		}
	}
}

// TestProtectionEnds: a process whose protection gains nothing shares the device natively, and the engine says so
// once. The account goes with the process.
func TestProtectionEnds(t *testing.T) {
	e, request := beside(t, model.ModeSuspend, 1)
	changes := 0
	for range 120 {
		request(100*ms, 99900*us, 200*ms)
		for _, p := range e.Protected() {
			if changes++; !p.Native {
				t.Errorf("changed to %+v", p)
			}
		}
	}
	now := model.Time(time.Second).Add(24 * time.Second)
	if p := protection(t, e, now); !p.Native || changes != 1 {
		t.Fatalf("%d changes: %+v", changes, p)
	}
	was := e.Stats().Preemptions
	for range 20 {
		request(100*ms, 99900*us, 200*ms)
	}
	if got := e.Stats().Preemptions; got != was {
		t.Errorf("the low was preempted for a process that shares natively: %v, before %v", got, was)
	}
	e.RemoveQueue(now, model.QueueID{Session: 1})
	e.Decide(now)
	if all := e.Protections(now, 0); len(all) != 0 {
		t.Errorf("accounts of processes that left: %+v", all)
	}
}

// dropped returns an engine in which process 101 shares the device natively, beside one low.
func dropped(t *testing.T) (*Engine, func(length, fed, period time.Duration), model.Time) {
	t.Helper()
	e, request := beside(t, model.ModeSuspend, 1)
	now, changes := model.Time(time.Second), 0
	for changes == 0 {
		if request(100*ms, 99900*us, 200*ms); now > model.Time(time.Minute) {
			t.Fatal("protection was not dropped")
		}
		now = now.Add(200 * ms)
		changes += len(e.Protected())
	}
	return e, request, now
}

// TestProtectionResumes: a process that shares natively is protected again in time, whatever it does meanwhile: its
// requests may be seen in part, or never end.
func TestProtectionResumes(t *testing.T) {
	high := model.QueueID{Session: 1}
	for _, c := range []struct {
		name string
		then func(e *Engine, now model.Time)
	}{
		{"idle", func(*Engine, model.Time) {}},
		{"busy without end", func(e *Engine, now model.Time) { e.SetBusy(now, high, true) }},
	} {
		e, _, now := dropped(t)
		c.then(e, now)
		end := now.Add(40 * time.Second)
		for now < end {
			_, wake := e.Decide(now)
			now = max(now+1, wake)
		}
		if p := protection(t, e, now); p.Native {
			t.Errorf("%s: still shared natively: %+v", c.name, p)
		}
	}
	e, request, now := dropped(t)
	for range 200 {
		request(100*ms, 0, 200*ms) // seen in part
	}
	if p := protection(t, e, now.Add(40*time.Second)); p.Native {
		t.Errorf("seen in part: still shared natively: %+v", p)
	}
}

// TestMeasuredOnlyWhileNative: what is measured while another process of the same rank keeps the protection up says
// nothing about native sharing. Otherwise that process could strip the first one of its protection.
func TestMeasuredOnlyWhileNative(t *testing.T) {
	for _, c := range []struct {
		name      string
		unordered bool
		change    func(e *Engine, now model.Time)
	}{
		{"an equal that is protected", false, func(e *Engine, now model.Time) {
			e.AddQueue(now, model.Queue{ID: model.QueueID{Session: 9}, PID: 109, Device: 1, Level: model.LevelInterrupt, Slices: true, Hint: model.Hint{Priority: 10}})
		}},
		{"a policy without order", true, func(e *Engine, _ model.Time) { _ = e.SetPolicy("RR") }},
		{"mode off", true, func(e *Engine, _ model.Time) { _ = e.SetMode(model.ModeOff, 0) }},
	} {
		e, request, now := dropped(t)
		c.change(e, now)
		before, cost := protection(t, e, now).Requests, protection(t, e, now).Cost
		for range 24 {
			request(100*ms, 99900*us, 200*ms)
		}
		now = now.Add(24 * 200 * ms)
		if p := protection(t, e, now); p.Source == policy.Measured || p.Requests != before {
			t.Errorf("%s: measured %d requests: %+v", c.name, p.Requests-before, p)
		}
		if p := protection(t, e, now); c.unordered && p.Cost > cost+ms {
			t.Errorf("%s: costs %v more: %+v", c.name, p.Cost-cost, p)
		}
	}
}

// TestProtectionSubmission: the account says how the program submits its requests.
func TestProtectionSubmission(t *testing.T) {
	for want, fed := range map[model.Class]time.Duration{model.ClassGPUBound: ms, model.ClassLaunchBound: 9 * ms} {
		e, request := beside(t, model.ModeLive, 1)
		for range 20 {
			request(9*ms+ms/10, fed, 30*ms)
		}
		if s := protection(t, e, model.Time(time.Minute)).Segments; s.Class != want || s.Known == 0 {
			t.Errorf("submits for %v of 9.1 ms: %+v, want %s", fed, s, want)
		}
	}
}

// TestClassOutlastsNativeSharing: what a program waits beside lows that need not give way says nothing about how it
// submits its requests.
func TestClassOutlastsNativeSharing(t *testing.T) {
	for name, change := range map[string]func(e *Engine) error{
		"mode off":               func(e *Engine) error { return e.SetMode(model.ModeOff, 0) },
		"a policy without order": func(e *Engine) error { return e.SetPolicy("RR") },
		"no suspensions":         func(e *Engine) error { return e.SetMode(model.ModeTimeslice, 0) },
	} {
		e, request := beside(t, model.ModeLive, 7)
		for range 20 {
			request(9*ms+ms/10, 9*ms, 40*ms)
		}
		if err := change(e); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			request(25*ms, 9*ms, 40*ms)
		}
		if s := protection(t, e, model.Time(time.Minute)).Segments; s.Class != model.ClassLaunchBound {
			t.Errorf("%s: %+v", name, s)
		}
	}
	e, request, now := dropped(t)
	for range 6 {
		request(125*ms, 99900*us, 200*ms)
	}
	if s := protection(t, e, now).Segments; s.Class != model.ClassLaunchBound {
		t.Errorf("protection gains nothing: %+v", s)
	}
}
