// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// Whatever happens to clients, a snapshot never reuses the copy of a client that changed.
func TestSnapshotsAreCurrent(t *testing.T) {
	h := sessiontest.Start(t, sessiontest.Separate)
	ctx := t.Context()
	var clients []*sessiontest.Client
	for range 3 {
		clients = append(clients, h.Client(t, 0, wire.LevelAuto))
	}
	clients[0].HandOver(t)
	var pids []int
	if err := h.Call(ctx, func() { pids = h.Loop.PIDs() }); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	reused := 0
	for step := range 600 {
		n := random.IntN(len(clients))
		c, pid, slot := clients[n], pids[n], random.IntN(4)
		switch random.IntN(9) {
		case 0:
			c.Page.CreateQueue(slot, 0, 1<<8)
			c.Ring()
		case 1:
			c.Page.DestroyQueue(slot)
			c.Ring()
		case 2, 3:
			c.Busy(slot, random.IntN(2) == 0)
		case 4:
			c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintPriority, Priority: random.Int64N(20) - 10}, "")
		case 5:
			_ = h.SetHeld(ctx, pid, random.IntN(3) == 0)
		case 6:
			_, _ = h.SetHint(ctx, pid, true, sessiontest.Change("priority", strconv.Itoa(random.IntN(10))), nil)
		case 7:
			var change model.HintChange
			change.Set("priority", model.HintValue{Number: random.Int64N(5)})
			_, _ = h.SetQueueHint(ctx, pid, uint32(slot), true, change, func(*model.Hint) error { return nil })
		case 8:
			policies := []string{"HPF", "RR", "CFS"}
			_ = h.Engine(ctx, func(e *engine.Engine) { _ = e.SetPolicy(policies[random.IntN(3)]) })
		}
		if step%3 == 0 {
			if _, err := h.Clients(ctx); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if failed := h.Call(ctx, func() {
			err = h.CheckCopies()
			_, unchanged := h.Copied()
			reused += unchanged
		}); failed != nil || err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
	if reused < 100 {
		t.Errorf("only %d copies could be reused: the test compares nothing", reused)
	}
}

// Readers format a snapshot while the loop continues: it must not change.
func TestSnapshotsDoNotChange(t *testing.T) {
	h := sessiontest.Start(t, nil)
	h.Client(t, 0, wire.LevelAuto).Queue(0)
	sessiontest.Await(t, "the queue is known", func() bool { return len(h.Only(t).Queues) == 1 })
	turn := func(why string) {
		t.Helper()
		if err := h.Call(t.Context(), func() { h.Turn(h.OnlyClient(), sessiontest.GPU, why) }); err != nil {
			t.Fatal(err)
		}
	}
	turn("first")
	format, err := h.Unformatted(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	turn("second")
	if got := format()[0].Queues[0].Reason; got != "first" {
		t.Errorf("the reason is %q, want the one at the time of the snapshot", got)
	}
}

// A reader sees every change that was answered before it asked.
func TestReadersSeeTheirChanges(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 0, wire.LevelAuto)
	c.Queue(0)
	pid := h.Only(t).PID
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	for range 4 { // other readers, whose snapshots may be in progress
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = h.Clients(t.Context())
				}
			}
		})
	}
	for i := range 100 {
		want := model.Priority(i % 50)
		if _, err := h.SetHint(t.Context(), pid, true, sessiontest.Change("priority", strconv.Itoa(i%50)), nil); err != nil {
			t.Fatal(err)
		}
		if v := h.Only(t); v.Hint.Priority != want {
			t.Fatalf("priority %d was set, %d is shown", want, v.Hint.Priority)
		}
		if v, err := h.Loop.Client(t.Context(), pid); err != nil || v.Hint.Priority != want {
			t.Fatalf("priority %d was set, %d is shown, %v", want, v.Hint.Priority, err)
		}
	}
}

// Readers can't take the loop's time: many of them cost no more than one.
func TestSnapshotsArePaced(t *testing.T) {
	h := sessiontest.Start(t, nil)
	h.Client(t, 0, wire.LevelAuto).Queue(0)
	var wg sync.WaitGroup
	ends := time.Now().Add(300 * time.Millisecond)
	before := h.Loop.Stats().Snapshots
	reads := make([]int, 64)
	for i := range reads {
		wg.Go(func() {
			for time.Now().Before(ends) {
				_, _ = h.Clients(t.Context())
				reads[i]++
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, n := range reads {
		sum += n
	}
	made := h.Loop.Stats().Snapshots - before
	if made > 160 || sum < int(made) {
		t.Errorf("%d reads took %d snapshots in 300 ms; want at most one in 2 ms", sum, made)
	}
}

// A daemon that was stopped while it copied does not make readers wait many times as long.
func TestStoppedWhileCopying(t *testing.T) {
	h := sessiontest.Start(t, nil)
	h.Client(t, 0, wire.LevelAuto).Queue(0)
	if err := h.Loop.Call(t.Context(), func() { h.PublishInterrupted(2 * time.Second) }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for range 2 {
		if _, err := h.Clients(ctx); err != nil {
			t.Fatal("no answer a second after the daemon went on:", err)
		}
	}
}
