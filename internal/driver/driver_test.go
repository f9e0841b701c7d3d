// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/model"
)

// fakePage is a lease page in plain memory.
type fakePage struct {
	mu                         sync.Mutex
	epoch, recovered, deadline uint64
}

func (p *fakePage) WriteLease(e uint64, d model.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch, p.deadline = e, uint64(d)
}

func (p *fakePage) WriteLeaseDeadline(d model.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = uint64(d)
}

func (p *fakePage) RecoveredEpoch() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.recovered
}

func (p *fakePage) recover() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recovered = p.epoch
}

func (p *fakePage) get() (epoch, deadline uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch, p.deadline
}

// fakeTarget records what was applied; hook runs inside the operation.
type fakeTarget struct {
	mu     sync.Mutex
	state  model.Desired
	ops    []model.Desired
	inside atomic.Int32
	most   atomic.Int32
	hook   func(want model.Desired) error
	closed atomic.Bool
}

func (t *fakeTarget) Apply(_ context.Context, want model.Desired) error {
	n := t.inside.Add(1)
	defer t.inside.Add(-1)
	if n > t.most.Load() {
		t.most.Store(n)
	}
	if t.hook != nil {
		if err := t.hook(want); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state = want
	t.ops = append(t.ops, want)
	return nil
}

func (t *fakeTarget) Invalidate()  {}
func (t *fakeTarget) Close() error { t.closed.Store(true); return nil }

func (t *fakeTarget) last() (model.Desired, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state, len(t.ops)
}

type clock struct{ ns atomic.Int64 }

func (c *clock) now() model.Time         { return model.Time(c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

const limit = 100 * time.Millisecond

func start(t *testing.T, target Target, page LeasePage, c *clock) (*Worker, *Lease, *Metrics) {
	c.ns.CompareAndSwap(0, int64(time.Hour))
	l, m := NewLease(page, limit), &Metrics{}
	w := StartWorker(target, l, m, slog.New(slog.DiscardHandler), c.now)
	t.Cleanup(func() { w.Stop(false) })
	return w, l, m
}

var (
	stop = model.Desired{Suspend: model.LevelInterrupt}
	run  = model.Desired{}
)

func TestNewestWishWins(t *testing.T) {
	gate := make(chan struct{})
	target := &fakeTarget{hook: func(model.Desired) error { <-gate; return nil }}
	w, _, _ := start(t, target, &fakePage{}, &clock{})
	for i := range 100 {
		w.Want(model.Desired{Slice: time.Duration(i + 1)})
	}
	close(gate)
	await(t, "last wish applied", func() bool { d, _ := target.last(); return d.Slice == 100 })
	if _, n := target.last(); n > 3 {
		t.Errorf("%d operations for 100 requests", n)
	}
	if target.most.Load() != 1 {
		t.Errorf("%d operations at once", target.most.Load())
	}
}

func TestLeaseIsWrittenBeforeAndClearedAfter(t *testing.T) {
	page := &fakePage{}
	target := &fakeTarget{}
	target.hook = func(want model.Desired) error {
		if e, d := page.get(); want.Suspend != 0 && (e == 0 || d == 0) {
			t.Error("suspended without a lease")
		}
		return nil
	}
	c := &clock{}
	w, l, _ := start(t, target, page, c)
	w.Want(stop)
	await(t, "suspended", func() bool { d, _ := target.last(); return d.Suspend != 0 })
	_, before := page.get()
	c.advance(20 * time.Millisecond)
	if l.Tick(c.now()) {
		t.Error("a live lease is void")
	}
	if _, after := page.get(); after != before+uint64(20*time.Millisecond) {
		t.Error("tick did not move the deadline")
	}
	if !w.Stats().Suspended {
		t.Error("the figures don't show the suspension")
	}
	w.Want(run)
	await(t, "deadline cleared", func() bool { _, d := page.get(); return d == 0 })
	if w.Stats().Suspended {
		t.Error("the figures show a suspension that has ended")
	}
}

// A client that recovers during the suspend operation must end up resumed.
func TestRecoveryDuringSuspendIsUndone(t *testing.T) {
	for name, happen := range map[string]func(p *fakePage, c *clock){
		"client recovered": func(p *fakePage, _ *clock) { p.recover() },
		"deadline passed":  func(_ *fakePage, c *clock) { c.advance(limit + 1) },
	} {
		t.Run(name, func(t *testing.T) {
			page, c := &fakePage{}, &clock{}
			first := true
			target := &fakeTarget{}
			target.hook = func(want model.Desired) error {
				if want.Suspend != 0 && first {
					first = false
					happen(page, c)
				}
				return nil
			}
			w, _, m := start(t, target, page, c)
			w.Want(stop)
			await(t, "suspended again under a new epoch", func() bool {
				e, d := page.get()
				s, n := target.last()
				return e == 2 && d != 0 && s.Suspend != 0 && n == 3
			})
			target.mu.Lock()
			ops := target.ops
			target.mu.Unlock()
			if ops[1].Suspend != 0 {
				t.Errorf("not undone: %v", ops)
			}
			if m.Undone.Load() != 1 || w.Stats().Undone != 1 {
				t.Error("not counted")
			}
		})
	}
}

// The next tick detects a client that recovers after the suspension.
func TestRecoveryAfterSuspendIsSeenByTick(t *testing.T) {
	page, c, target := &fakePage{}, &clock{}, &fakeTarget{}
	w, l, _ := start(t, target, page, c)
	w.Want(stop)
	await(t, "suspended", func() bool { _, n := target.last(); return n == 1 })
	page.recover()
	if !l.Tick(c.now()) {
		t.Fatal("tick did not see the recovery")
	}
	w.Redo()
	await(t, "suspended again", func() bool { e, _ := page.get(); s, n := target.last(); return e == 2 && n == 3 && s.Suspend != 0 })
}

// After a long daemon stall the first tick must not extend an expired lease.
func TestExpiredLeaseIsNotExtended(t *testing.T) {
	page, c, target := &fakePage{}, &clock{}, &fakeTarget{}
	w, l, _ := start(t, target, page, c)
	w.Want(stop)
	await(t, "suspended", func() bool { _, n := target.last(); return n == 1 })
	_, before := page.get()
	c.advance(5 * time.Second)
	if !l.Tick(c.now()) {
		t.Error("an expired lease is not void")
	}
	if _, d := page.get(); d != before {
		t.Error("an expired lease was extended")
	}
	w.Want(run)
	await(t, "running", func() bool { s, _ := target.last(); _, d := page.get(); return s.Suspend == 0 && d == 0 })
}

// A resume that hangs freezes the deadline, so the client recovers by itself.
func TestStuckResumeLetsTheLeaseRunOut(t *testing.T) {
	page, c := &fakePage{}, &clock{}
	hang := make(chan struct{})
	target := &fakeTarget{}
	target.hook = func(want model.Desired) error {
		if want.Suspend == 0 {
			<-hang
		}
		return nil
	}
	w, l, _ := start(t, target, page, c)
	w.Want(stop)
	await(t, "suspended", func() bool { _, n := target.last(); return n == 1 })
	w.Want(run)
	await(t, "resume under way", func() bool { return target.inside.Load() == 1 })
	_, before := page.get()
	c.advance(50 * time.Millisecond)
	l.Tick(c.now())
	if _, d := page.get(); d != before {
		t.Error("the deadline moved although a resume is due")
	}
	c.advance(60 * time.Millisecond)
	if w.Stats().StuckSince == 0 {
		t.Error("stuck operation not shown")
	}
	close(hang)
	await(t, "lease ended", func() bool { _, d := page.get(); return d == 0 })
}

func TestNeverAnsweringTargetStallsOnlyItself(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	bad := &fakeTarget{hook: func(model.Desired) error { <-hang; return nil }}
	good := &fakeTarget{}
	c := &clock{}
	wb, _, _ := start(t, bad, &fakePage{}, c)
	wg, _, _ := start(t, good, &fakePage{}, c)
	wb.Want(stop)
	wg.Want(stop)
	await(t, "good one suspended", func() bool { d, _ := good.last(); return d.Suspend != 0 })
	c.advance(time.Second)
	if wb.Stats().StuckSince == 0 || wg.Stats().StuckSince != 0 {
		t.Error("stuck target not told apart")
	}
	done := wb.Stop(true)
	select {
	case <-done:
		t.Error("a stuck worker can't have ended")
	case <-time.After(20 * time.Millisecond):
	}
}

func TestErrorsAreRetried(t *testing.T) {
	var fails atomic.Int32
	target := &fakeTarget{hook: func(model.Desired) error {
		if fails.Add(1) <= 3 {
			return errors.New("no")
		}
		return nil
	}}
	w, _, m := start(t, target, &fakePage{}, &clock{})
	w.Want(model.Desired{Slice: time.Millisecond})
	await(t, "applied", func() bool { d, _ := target.last(); return d.Slice == time.Millisecond })
	await(t, "error cleared", func() bool { s := w.Stats(); return s.LastError == "" && s.Errors == 3 })
	if m.Errors.Load() != 3 {
		t.Errorf("%d errors counted", m.Errors.Load())
	}
}

func TestStopRestores(t *testing.T) {
	page, target := &fakePage{}, &fakeTarget{}
	w, _, _ := start(t, target, page, &clock{})
	w.Want(model.Desired{Suspend: model.LevelInterrupt, Slice: time.Microsecond})
	await(t, "suspended", func() bool { _, n := target.last(); return n == 1 })
	<-w.Stop(true)
	if d, _ := target.last(); d != run || !target.closed.Load() {
		t.Errorf("left at %+v", d)
	}
	if _, d := page.get(); d != 0 {
		t.Error("lease left")
	}
}

func TestHistogram(t *testing.T) {
	var h Histogram
	for i := 1; i <= 1000; i++ {
		h.Record(time.Duration(i) * time.Microsecond)
	}
	n, at, top := h.Quantiles(0.5, 0.99, 1)
	if n != 1000 || top != time.Millisecond {
		t.Errorf("n %d max %v", n, top)
	}
	for i, want := range []time.Duration{500 * time.Microsecond, 990 * time.Microsecond, time.Millisecond} {
		if r := float64(at[i]) / float64(want); r < 1 || r > 1.07 {
			t.Errorf("quantile %d: %v, want %v", i, at[i], want)
		}
	}
	for _, d := range []time.Duration{-1, 0, 15, 16, 17, 31, 32, 1<<63 - 1} {
		h.Record(d)
	}
}

func TestResolve(t *testing.T) {
	c := Capability{MaxLevel: model.LevelBlock, Reason: "no driver"}
	if l, why := c.Resolve(model.LevelInterrupt); l != model.LevelBlock || why == "" {
		t.Error(l, why)
	}
	c = Capability{MaxLevel: model.LevelInterrupt}
	if l, why := c.Resolve(model.LevelAuto); l != model.LevelInterrupt || why != "" {
		t.Error(l, why)
	}
	if l, _ := c.Resolve(model.LevelBlock); l != model.LevelBlock {
		t.Error(l)
	}
}

// slowLog is a log whose writer hangs until it is closed.
type slowLog struct {
	slog.Handler
	hang chan struct{}
	came chan struct{}
}

func (s *slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (s *slowLog) Handle(context.Context, slog.Record) error {
	s.came <- struct{}{}
	<-s.hang
	return nil
}

// TestLogOutsideTheLock: a failed operation is logged without the worker's lock, which the engine loop takes.
func TestLogOutsideTheLock(t *testing.T) {
	target := &fakeTarget{hook: func(model.Desired) error { return errors.New("no") }}
	log := &slowLog{hang: make(chan struct{}), came: make(chan struct{})}
	w := StartWorker(target, NewLease(&fakePage{}, limit), &Metrics{}, slog.New(log), (&clock{}).now)
	w.Want(model.Desired{Slice: time.Millisecond})
	<-log.came
	done := make(chan struct{})
	go func() {
		w.Want(model.Desired{Slice: 2 * time.Millisecond})
		w.LeaseChanged(true)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("the loop waits for a line of the log")
	}
	close(log.hang)
	go func() {
		for range log.came {
		}
	}()
	<-w.Stop(false)
	<-done
}
