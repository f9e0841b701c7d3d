// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/model"
)

// A stopped worker retries until everything is undone and keeps the lease until then.
func TestStopReportsRestored(t *testing.T) {
	var broken atomic.Bool
	target := &fakeTarget{hook: func(want model.Desired) error {
		if want == run && broken.Load() {
			return errors.New("busy")
		}
		return nil
	}}
	page := &fakePage{}
	w, _, _ := start(t, target, page, &clock{})
	w.Want(stop)
	await(t, "suspended", func() bool { _, n := target.last(); return n == 1 })
	broken.Store(true)
	done := w.Stop(true)
	await(t, "tried again", func() bool { return w.Stats().Errors >= 2 })
	if _, deadline := page.get(); deadline == 0 || w.Restored() {
		t.Error("reported as restored too early")
	}
	<-w.Want(stop) // too late
	broken.Store(false)
	<-done
	if d, _ := target.last(); d != run || !w.Restored() {
		t.Errorf("left at %+v, restored %v", d, w.Restored())
	}
	if _, deadline := page.get(); deadline != 0 {
		t.Error("lease left")
	}
}

func TestAbandonedStopIsNoSuccess(t *testing.T) {
	target := &fakeTarget{hook: func(want model.Desired) error {
		if want == run {
			return errors.New("no")
		}
		return nil
	}}
	page := &fakePage{}
	w, _, _ := start(t, target, page, &clock{})
	w.Want(stop)
	await(t, "suspended", func() bool { _, n := target.last(); return n == 1 })
	done := w.Stop(true)
	time.Sleep(5 * time.Millisecond)
	w.Abandon()
	<-done
	if _, deadline := page.get(); w.Restored() || deadline == 0 {
		t.Error("reported as restored too early")
	}
}

// believer skips operations it believes to be in effect, as driver targets do.
type believer struct {
	fakeTarget
	believes atomic.Uint32 // 0: nothing
}

func (b *believer) Invalidate() { b.believes.Store(0) }

// A failed suspension may still be in effect, so the next operation must ignore the target's cached
// state.
func TestFailedSuspensionIsUndone(t *testing.T) {
	for _, name := range []string{"by a wish", "by the end"} {
		b := &believer{}
		b.hook = func(want model.Desired) error {
			if want != run {
				return errors.New("timeout, but it landed")
			}
			return nil
		}
		b.believes.Store(1)
		w, _, _ := start(t, b, &fakePage{}, &clock{})
		w.Want(stop)
		await(t, "failed", func() bool { return w.Stats().Errors >= 1 })
		if name == "by a wish" {
			w.Want(run)
			await(t, "undone", func() bool { _, n := b.last(); return n >= 1 })
		} else {
			<-w.Stop(true)
		}
		if b.believes.Load() != 0 {
			t.Errorf("%s: the target still believes that it runs", name)
		}
	}
}
