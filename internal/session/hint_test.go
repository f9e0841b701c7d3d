// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"xsched/internal/clock"
	"xsched/internal/engine"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

func toPriority(p model.Priority) model.HintChange {
	return sessiontest.Change("priority", strconv.Itoa(int(p)))
}

func TestHintsOfAProcess(t *testing.T) {
	h := sessiontest.Start(t, nil)
	hello := wire.Hello{PID: 1, Hint: wire.Hint{Said: wire.HintPriority | wire.HintGang, Priority: 4, Utilization: 9}}
	copy(hello.Hint.Gang[:], "ranks")
	c, err := sessiontest.Dial(h.Path, hello)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if v := h.Only(t); v.Hint.Priority != 4 || v.Hint.Gang != "ranks" || v.Hint.Utilization != 0 {
		t.Errorf("hello: %+v", v.Hint)
	}
	c.Queue(0)
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintUtilization | wire.HintSLO, Utilization: 30, SLOUS: 20000, SLOPercentile: 9950}, "")
	sessiontest.Await(t, "the hint is taken", func() bool { return h.Only(t).Hint.Utilization == 30 })
	v := h.Only(t)
	if v.Hint.Priority != 4 || v.Hint.SLO.P() != 99.5 || v.Hint.SLO.Latency.Milliseconds() != 20 {
		t.Errorf("%+v", v.Hint)
	}
	// Only a private daemon lets a program choose the policy.
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintPolicy | wire.HintK, K: 2}, "FIFO")
	sessiontest.Await(t, "k is taken", func() bool { return h.Only(t).Hint.K == 2 })
	var policy string
	if err := h.Engine(context.Background(), func(e *engine.Engine) { policy = e.Config().Policy }); err != nil || policy != "HPF" {
		t.Errorf("policy %s, %v", policy, err)
	}
	for name, f := range map[string]wire.HintFrame{
		"queue":    {Queue: wire.MaxQueues},
		"priority": {Queue: wire.QueueAll, Hint: wire.Hint{Said: wire.HintPriority, Priority: 256}},
		"slice":    {Queue: wire.QueueAll, Hint: wire.Hint{Said: wire.HintTimeslice, TimesliceUS: 1}},
		"field":    {Queue: wire.QueueAll, Hint: wire.Hint{Said: wire.HintAll + 1}},
		"time":     {Queue: wire.QueueAll, Hint: wire.Hint{DeadlineUS: 1 << 62}},
	} {
		if _, err := wire.DecodeHint(wire.EncodeHint(f)); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	// Hints beyond the limit wait, and the last one counts.
	for i := range 1000 {
		c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintUtilization, Utilization: int64(i % 100)}, "")
	}
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintUtilization, Utilization: 77}, "")
	sessiontest.Await(t, "the last hint is in force", func() bool {
		return h.Only(t).Hint.Utilization == 77 && len(h.Only(t).Queues) == 1
	})
	var told model.Hint
	sessiontest.Await(t, "the engine knows it", func() bool {
		_ = h.Engine(context.Background(), func(e *engine.Engine) { told = e.Snapshot(0)[0].Queue.Hint })
		return told.Utilization == 77
	})
	if told.PerQueue {
		t.Error("a hint took the process's queues apart")
	}
	_, _ = c.Conn.Write(wire.EncodeHint(wire.HintFrame{Queue: wire.MaxQueues}))
	sessiontest.Await(t, "a bad hint ends the session", func() bool { return h.Server.Stats().Sessions == 0 })
}

func TestPrivateDaemonObeys(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { c.Loop.Private = true })
	policy := func() (name string) {
		_ = h.Engine(context.Background(), func(e *engine.Engine) { name = e.Config().Policy })
		return name
	}
	hello := wire.Hello{PID: 1, Scheduler: wire.SchedulerLocal}
	copy(hello.Policy[:], "FIFO")
	c, err := sessiontest.Dial(h.Path, hello)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := policy(); got != "FIFO" {
		t.Errorf("policy %s", got)
	}
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintPolicy}, "nonsense")
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintPolicy}, "HPF")
	sessiontest.Await(t, "policy is HPF", func() bool { return policy() == "HPF" })
}

// Each stream of a process has its own gate and priority. Hardware levels would suspend all of them.
func TestStreamsAreQueues(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 1, wire.LevelInterrupt)
	c.HandOver(t)
	c.Queue(0)
	sessiontest.Await(t, "level 3", func() bool { v := h.Only(t); return len(v.Queues) == 1 && v.Queues[0].Level == model.LevelInterrupt })
	c.Page.CreateStream(1, 0, 1<<8, 3)
	c.Page.CreateStream(2, 0, 1<<8, 0)
	c.Ring()
	sessiontest.Await(t, "three queues", func() bool { return len(h.Only(t).Queues) == 3 })
	for i, q := range h.Only(t).Queues {
		if q.Level != model.LevelBlock || !strings.Contains(q.Reason, "one by one") || !q.Hint.PerQueue || q.Stream != (i > 0) {
			t.Errorf("queue %d: %+v", i, q)
		}
		if want := []model.Priority{1, 4, 1}[i]; q.Hint.Priority != want {
			t.Errorf("queue %d has priority %d, want %d", i, q.Hint.Priority, want)
		}
	}
	c.Busy(1, true)
	c.Busy(2, true)
	sessiontest.Await(t, "the lower stream is held", func() bool { return c.Held(2) && !c.Held(1) })
	c.Hint(t, 2, wire.Hint{Said: wire.HintPriority, Priority: 9}, "")
	sessiontest.Await(t, "and the other one after a hint", func() bool { return c.Held(1) && !c.Held(2) })
	// A hint about the process keeps the hint about the queue.
	if _, err := h.SetHint(context.Background(), os.Getpid(), true, toPriority(5), nil); err != nil {
		t.Fatal(err)
	}
	qs := h.Only(t).Queues
	if qs[0].Hint.Priority != 5 || qs[1].Hint.Priority != 8 || qs[2].Hint.Priority != 9 {
		t.Errorf("priorities %d, %d, %d", qs[0].Hint.Priority, qs[1].Hint.Priority, qs[2].Hint.Priority)
	}
	// A hint about a destroyed queue has no effect.
	c.Busy(2, false)
	old := wire.HintFrame{Queue: 2, Generation: c.Page.Queue(2).Generation, Hint: wire.Hint{Said: wire.HintPriority, Priority: 200}}
	c.Page.DestroyQueue(2)
	c.Page.CreateStream(2, 0, 1<<8, 0)
	c.Ring()
	_, _ = c.Conn.Write(wire.EncodeHint(old))
	c.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintK, K: 3}, "")
	sessiontest.Await(t, "the next hint is taken", func() bool { return h.Only(t).Hint.K == 3 })
	if p := h.Only(t).Queues[2].Hint.Priority; p != 5 {
		t.Errorf("the new queue has priority %d", p)
	}
	// The hint of a control client stays in force until the program changes the same field.
	ok := func(*model.Hint) error { return nil }
	var change model.HintChange
	change.Set("priority", model.HintValue{Number: 40})
	change.Set("deadline_us", model.HintValue{Number: 7000})
	if got, err := h.SetQueueHint(context.Background(), os.Getpid(), 2, true, change, ok); err != nil || got.Priority != 40 || got.Deadline.Milliseconds() != 7 || got.K != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := h.SetQueueHint(context.Background(), os.Getpid(), 77, true, change, ok); !errors.Is(err, loop.ErrUnknownQueue) {
		t.Errorf("an unknown queue: %v", err)
	}
	c.Hint(t, 2, wire.Hint{Said: wire.HintPriority, Priority: 11}, "")
	sessiontest.Await(t, "the program's newer hint counts", func() bool { return h.Only(t).Queues[2].Hint.Priority == 11 })
	if q := h.Only(t).Queues[2]; q.Hint.Deadline.Milliseconds() != 7 {
		t.Errorf("a field that the program did not set is gone: %+v", q.Hint)
	}
	c.Page.DestroyQueue(1)
	c.Page.DestroyQueue(2)
	c.Ring()
	sessiontest.Await(t, "level 3 again", func() bool { v := h.Only(t); return len(v.Queues) == 1 && v.Queues[0].Level == model.LevelInterrupt })
}

func TestRequestsAreRead(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 0, 0)
	now := clock.Now()
	for range 10 {
		c.Page.FinishRequest(now-1000, now)
	}
	sessiontest.Await(t, "ten are read", func() bool { return h.Only(t).Marked == 10 })
	for range 200 {
		c.Page.FinishRequest(now-1000, now)
	}
	sessiontest.Await(t, "the rest is counted", func() bool { return h.Only(t).Marked == 210 })
	if lost := h.Only(t).MarksLost; lost > 200-wire.RequestRing {
		t.Errorf("%d lost", lost)
	}
	c.Page.FinishRequest(now, now-1) // ends before it begins
	sessiontest.Await(t, "nonsense is counted", func() bool { return h.Only(t).Marked == 211 })
}

// A queue with its own hint keeps its hardware level until its process has a second queue on the GPU.
func TestQueueHintBesideSecondQueue(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 1, wire.LevelInterrupt)
	c.HandOver(t)
	c.Queue(0)
	levels := func() (levels []model.Level) {
		_ = h.Engine(context.Background(), func(e *engine.Engine) {
			for _, q := range e.Snapshot(0) {
				levels = append(levels, q.Queue.Level)
			}
		})
		return levels
	}
	level3 := func() bool { l := levels(); return len(l) == 1 && l[0] == model.LevelInterrupt }
	sessiontest.Await(t, "level 3", level3)
	var change model.HintChange
	change.Set("utilization", model.HintValue{Number: 30})
	if _, err := h.SetQueueHint(context.Background(), os.Getpid(), 0, false, change, func(*model.Hint) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if !level3() {
		t.Errorf("alone on its GPU it has %v", levels())
	}
	c.Queue(1)
	sessiontest.Await(t, "both at level 1", func() bool { l := levels(); return len(l) == 2 && l[0] == model.LevelBlock && l[1] == model.LevelBlock })
	c.Page.DestroyQueue(1)
	c.Ring()
	sessiontest.Await(t, "level 3 again", level3)
}
