// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"xsched/internal/model"
)

// TestWaited: a low waits while a high has work, and from the time it has work itself.
func TestWaited(t *testing.T) {
	const ms = model.Time(time.Millisecond)
	cfg := DefaultConfig()
	cfg.Mode, cfg.Hold, cfg.StarvationBound = model.ModeSuspend, 0, 0
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	high, low, other := model.QueueID{Session: 1}, model.QueueID{Session: 2}, model.QueueID{Session: 2, Index: 1}
	at := func(now model.Time, f func()) {
		f()
		e.Decide(now * ms)
	}
	add := func(id model.QueueID, pid int, priority model.Priority) {
		e.AddQueue(0, model.Queue{ID: id, PID: pid, Device: 1, Level: model.LevelInterrupt, Hint: model.Hint{Priority: priority}})
	}
	busy := func(now model.Time, id model.QueueID, on bool) {
		at(now, func() { e.SetBusy(now*ms, id, on) })
	}
	at(0, func() { add(high, 1, 10); add(low, 2, 0); add(other, 2, 0) })
	busy(10, high, true)
	busy(12, low, true)   // waits
	busy(14, other, true) // waits as well: the session waits once
	busy(20, high, false) // both run
	busy(25, other, false)
	busy(30, high, true)
	busy(33, low, false) // ends while it is suspended
	busy(40, high, false)
	at(50, func() { e.SetBusy(50*ms, low, true); e.SetHeld(50*ms, 2, true) }) // by hand
	at(55, func() { e.SetHeld(55*ms, 2, false) })
	check := func(id model.SessionID, from, to, want model.Time) {
		t.Helper()
		if got := e.Waited(id, from*ms, to*ms); got != time.Duration(want*ms) {
			t.Errorf("session %d waited for %v in [%d, %d), want %d ms", id, got, from, to, want)
		}
	}
	check(1, 0, 100, 0)
	check(2, 0, 100, 8+3+5)
	check(2, 12, 33, 8+3)
	check(2, 15, 17, 2)
	check(2, 20, 30, 0)
	check(2, 31, 60, 2+5)
	check(2, 60, 50, 0)
	check(3, 0, 100, 0) // unknown

	busy(60, high, true) // the low has work, and waits
	check(2, 55, 70, 10)
	e.RemoveQueue(70*ms, low)
	check(2, 55, 90, 10)
	e.RemoveQueue(80*ms, other)
	if e.RemoveQueue(80*ms, high); len(e.sessions) != 0 {
		t.Errorf("%d sessions are left", len(e.sessions))
	}
}

// TestStarvesNextToUnmanaged: a service of 400 requests a second leaves a low 1 ms between two of them.
// Next to an unmanaged program, whose slice may take all of it, that is no progress: the low gets a
// grant, a useful slice for a quantum, every two seconds.
func TestStarvesNextToUnmanaged(t *testing.T) {
	const period, request = 2500 * time.Microsecond, 1000 * time.Microsecond
	run := func(unmanaged bool) uint64 {
		e, err := New(DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		high, low := model.QueueID{Session: 1}, model.QueueID{Session: 2}
		for id, priority := range map[model.QueueID]model.Priority{high: 10, low: 0} {
			e.AddQueue(0, model.Queue{ID: id, PID: int(id.Session), Device: 1, Level: model.LevelInterrupt, Slices: true, Hint: model.Hint{Priority: priority}})
		}
		e.SetUnmanaged(0, 1, unmanaged)
		e.SetBusy(0, low, true)
		decide := func(from, to model.Time) {
			for at := from; at < to; {
				_, wake := e.Decide(at)
				at = max(wake, at+1)
			}
		}
		for now := model.Time(0); now < model.Time(9*time.Second); now = now.Add(period) {
			e.SetBusy(now, high, true)
			decide(now, now.Add(request))
			e.SetBusy(now.Add(request), high, false)
			decide(now.Add(request), now.Add(period))
		}
		return e.Stats().Grants
	}
	if with, without := run(true), run(false); with != 4 || without != 0 {
		t.Errorf("%d grants in nine seconds next to an unmanaged program, want 4; %d without one, want 0", with, without)
	}
}

// TestWaitingThins: the account stays bounded. Recent periods are exact, and all time is counted.
func TestWaitingThins(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var w waiting
	type span struct{ from, to model.Time }
	var all []span
	now := model.Time(1000)
	for range 20 * maxWaitPoints {
		now += model.Time(1 + r.IntN(1000))
		from := now
		w.begin(now)
		if r.IntN(2) == 0 {
			w.begin(now)
			now += model.Time(r.IntN(1000))
			w.end(now)
		}
		now += model.Time(r.IntN(1000))
		w.end(now)
		all = append(all, span{from, now})
	}
	if len(w.line) > maxWaitPoints {
		t.Errorf("%d points", len(w.line))
	}
	exact := func(at model.Time) (sum time.Duration) {
		for _, s := range all {
			sum += max(0, min(s.to, at).Sub(s.from))
		}
		return sum
	}
	near := all[len(all)-maxWaitPoints/8].from // within the newer half
	last := time.Duration(0)
	for at := model.Time(0); at <= now; at += now / 5000 {
		got, want := w.upTo(at), exact(at)
		if at >= near && got != want {
			t.Fatalf("%v until %d, want %v", got, at, want)
		}
		if got < last || got > exact(now) {
			t.Fatalf("%v until %d, before it %v", got, at, last)
		}
		last = got
	}
	if w.upTo(now) != exact(now) || w.upTo(all[0].from) != 0 {
		t.Errorf("%v in all, want %v", w.upTo(now), exact(now))
	}
}
