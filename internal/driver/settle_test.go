// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/model"
)

// While an operation hangs, every waiter for its end gives up with its own caller. Afterwards a waiter
// learns why it failed, and nothing once it has succeeded.
func TestSettle(t *testing.T) {
	var fails, begun atomic.Bool
	hangs := make(chan struct{})
	target := &fakeTarget{hook: func(want model.Desired) error {
		switch {
		case hardware(want):
			begun.Store(true)
			<-hangs
		case fails.Load():
			return errors.New("no such queue")
		}
		return nil
	}}
	w, _ := realTime(t, target, &fakePage{})
	if err := w.Settle(t.Context()); err != nil {
		t.Errorf("before the first state: %v", err)
	}
	w.Want(model.Desired{Suspend: model.LevelDeactivate})
	await(t, "hung", begun.Load)
	tried := w.Want(model.Desired{Suspend: model.LevelInterrupt}) // waits for the first
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			if err := w.Settle(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that left got %v", err)
			}
		})
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := w.Settle(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a hung operation gave %v", err)
	}
	leave()
	all.Wait()
	close(hangs)
	<-tried
	fails.Store(true)
	w.Want(model.Desired{})
	if err := w.Settle(t.Context()); err == nil || err.Error() != "no such queue" {
		t.Errorf("a failed operation gave %v", err)
	}
	fails.Store(false)
	await(t, "repeated", func() bool { return w.Settle(t.Context()) == nil })
}
