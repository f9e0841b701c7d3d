// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"xsched/internal/session/sessiontest"
)

// A request whose caller has given up never runs.
func TestAnAbandonedRequestIsNotCarriedOut(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 0, 0)
	c.Queue(0)
	sessiontest.Await(t, "it is known", func() bool { return h.Loop.Stats().Queues == 1 })
	release := h.Block(t)
	short, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := h.SetHeld(short, os.Getpid(), true); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("held by a loop that is blocked: %v", err)
	}
	release()
	all, err := h.Clients(context.Background())
	if err != nil || len(all) != 1 || all[0].Held {
		t.Errorf("%+v %v", all, err)
	}
}

// Callers may give up at any moment, also while the loop runs their request.
func TestGivingUpDoesNotRace(t *testing.T) {
	h := sessiontest.Start(t, nil)
	h.Client(t, 0, 0).Queue(0)
	sessiontest.Await(t, "it is known", func() bool { return h.Loop.Stats().Queues == 1 })
	for i := range 2000 {
		short, cancel := context.WithTimeout(context.Background(), time.Duration(i%100)*time.Microsecond)
		_, _ = h.Clients(short)
		_, _ = h.SetHint(short, os.Getpid(), false, sessiontest.Change("priority", "0"), nil)
		cancel()
	}
	if _, err := h.Clients(context.Background()); err != nil {
		t.Error(err)
	}
}

// A loop that can't wait ends, and Done says so: a daemon without an engine must not look alive.
func TestBrokenLoopEnds(t *testing.T) {
	h := sessiontest.Start(t, nil)
	if err := h.BreakEpoll(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.Loop.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the loop goes on")
	}
}
