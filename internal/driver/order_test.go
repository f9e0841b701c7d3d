// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"testing"
	"testing/synctest"
	"time"

	"xsched/internal/model"
)

func wantTried(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(5 * time.Second):
		t.Fatalf("never tried: %s", what)
	}
}

// A suspension ordered after a resume waits for it, but at most afterMax.
func TestWantAfter(t *testing.T) {
	for name, stuck := range map[string]bool{"resume answers": false, "resume hangs": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				if !stuck {
					time.AfterFunc(afterMax/4, func() { close(hang) })
				}
				var stoppedAt time.Time
				resuming := &fakeTarget{hook: func(model.Desired) error { <-hang; return nil }}
				stopping := &fakeTarget{hook: func(model.Desired) error { stoppedAt = time.Now(); return nil }}
				a, _, _ := start(t, resuming, &fakePage{}, &clock{})
				b, _, _ := start(t, stopping, &fakePage{}, &clock{})
				began := time.Now()
				resumed := a.Want(model.Desired{Slice: time.Millisecond})
				wantTried(t, "stop", b.Want(stop, resumed))
				want := afterMax / 4
				if stuck {
					want = afterMax
					close(hang)
				}
				if waited := stoppedAt.Sub(began); waited != want {
					t.Errorf("the stop came after %v, want %v", waited, want)
				}
				wantTried(t, "resume", resumed)
				<-a.Stop(false)
				<-b.Stop(false)
			})
		})
	}
}

// A newer desired state skips the predecessors of an older one and releases its waiters.
func TestNewerStateSkipsPredecessors(t *testing.T) {
	never := make(chan struct{})
	target := &fakeTarget{}
	w, _, _ := start(t, target, &fakePage{}, &clock{})
	first := w.Want(stop, never)
	second := w.Want(model.Desired{Slice: time.Millisecond})
	wantTried(t, "first", first)
	wantTried(t, "second", second)
	if d, _ := target.last(); d.Suspend != 0 {
		t.Errorf("the older state is in effect: %+v", d)
	}
	third := w.Want(stop, never)
	<-w.Stop(false)
	wantTried(t, "third, whose worker has ended", third)
}
