// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/model"
)

// realTime starts a worker on the real clock, whose lease a loop extends.
func realTime(t *testing.T, target Target, page LeasePage) (*Worker, *Metrics) {
	t.Helper()
	began := time.Now()
	now := func() model.Time { return model.Time(time.Hour + time.Since(began)) }
	l, m := NewLease(page, limit), &Metrics{}
	w := StartWorker(target, l, m, slog.New(slog.DiscardHandler), now)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				if l.Tick(now()) {
					w.Redo()
				}
			}
		}
	}()
	t.Cleanup(func() { w.Stop(false); close(done) })
	return w, m
}

// A resume that fails while the policy keeps changing its mind: the lease ends, so that the client
// resumes the process, and scheduling is off within 200 ms. Nothing is suspended before a resume
// has succeeded, and for a second after that.
func TestFailingResume(t *testing.T) {
	var fails, suspended atomic.Bool
	var failed atomic.Int64 // when the last resume failed
	start := time.Now()
	target := &fakeTarget{hook: func(want model.Desired) error {
		if hardware(want) {
			suspended.Store(true)
			return nil
		}
		if fails.Load() {
			failed.Store(int64(time.Since(start)))
			return errors.New("too many open files")
		}
		return nil
	}}
	page := &fakePage{}
	w, m := realTime(t, target, page)
	var turns atomic.Int32
	w.OnOff(func() { turns.Add(1) })
	w.Want(stop)
	await(t, "suspended", func() bool { d, _ := target.last(); return hardware(d) })
	fails.Store(true)
	began := time.Now()
	w.Want(run)
	await(t, "a failed resume", func() bool { return w.Stats().Errors > 0 })
	suspended.Store(false)
	quit := make(chan struct{})
	defer close(quit)
	go func() { // turns of the policy
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			case <-time.After(10 * time.Millisecond):
				w.Want([]model.Desired{stop, run}[i%2])
			}
		}
	}()
	_, deadline := page.get()
	await(t, "off", func() bool { return w.Off() != "" })
	off := time.Since(began)
	if t.Logf("off after %v", off); off > 2*time.Second { // other load may delay the 200 ms
		t.Error("scheduling was not turned off at once")
	}
	time.Sleep(100 * time.Millisecond)
	if _, now := page.get(); now != deadline {
		t.Errorf("the deadline moved by %v: the client can't recover", time.Duration(now-deadline))
	}
	if suspended.Load() || m.TurnedOff.Load() != 1 || turns.Load() != 2 || w.Stats().Off == "" { // uncontrolled, then off
		t.Errorf("suspended %v, counted %d, notified %d", suspended.Load(), m.TurnedOff.Load(), turns.Load())
	}
	page.recover()
	fails.Store(false)
	await(t, "the lease ends", func() bool { _, d := page.get(); return d == 0 })
	await(t, "suspended again", func() bool { return suspended.Load() })
	if took := time.Since(start) - time.Duration(failed.Load()); took < offLeast || w.Off() != "" {
		t.Errorf("scheduled again %v after the last failure, off %q", took, w.Off())
	}
}

// A timeslice that can't be restored needs no lease in effect: the worker begins one that ends.
func TestFailingTimeslice(t *testing.T) {
	var fails atomic.Bool
	target := &fakeTarget{hook: func(model.Desired) error {
		if fails.Load() {
			return errors.New("no")
		}
		return nil
	}}
	page := &fakePage{}
	w, _ := realTime(t, target, page)
	w.Want(model.Desired{Slice: time.Microsecond})
	await(t, "a tiny slice", func() bool { d, _ := target.last(); return d.Slice == time.Microsecond })
	fails.Store(true)
	w.Want(run)
	await(t, "a lease that ends", func() bool { e, d := page.get(); return e != 0 && d != 0 })
	_, first := page.get()
	time.Sleep(50 * time.Millisecond)
	if _, now := page.get(); now != first {
		t.Error("the deadline moved")
	}
	fails.Store(false)
	await(t, "no lease", func() bool { _, d := page.get(); return d == 0 })
	await(t, "own slice", func() bool { d, _ := target.last(); return d.Slice == 0 })
	if w.Off() != "" {
		t.Errorf("a short failure turned scheduling off: %s", w.Off())
	}
}

// A suspension that is wanted while a resume hangs must not prolong the older one.
func TestHungResumeEndsLease(t *testing.T) {
	hang := make(chan struct{})
	target := &fakeTarget{}
	page := &fakePage{}
	w, _ := realTime(t, target, page)
	w.Want(stop)
	await(t, "suspended", func() bool { d, _ := target.last(); return hardware(d) })
	target.hook = func(model.Desired) error { <-hang; return nil }
	w.Want(run)
	await(t, "resuming", func() bool { return target.inside.Load() == 1 })
	w.Want(stop)
	_, first := page.get()
	time.Sleep(60 * time.Millisecond)
	if _, now := page.get(); now != first {
		t.Error("the deadline moved while the resume hangs")
	}
	close(hang)
	await(t, "suspended under a new lease", func() bool { d, _ := target.last(); e, _ := page.get(); return hardware(d) && e == 2 })
}
