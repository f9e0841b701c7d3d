// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

func TestGateFollowsPriority(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c) })
	low, high := h.Client(t, -10, wire.LevelBlock), h.Client(t, 10, wire.LevelBlock)
	low.Queue(0)
	high.Queue(0)
	sessiontest.Await(t, "queues are known", func() bool { return h.Loop.Stats().Queues == 2 })
	low.Busy(0, true)
	high.Busy(0, true)
	sessiontest.Await(t, "low is held", func() bool { return low.Held(0) })
	if high.Held(0) {
		t.Error("high is held")
	}
	high.Busy(0, false)
	sessiontest.Await(t, "low runs", func() bool { return !low.Held(0) })
	high.Busy(0, true)
	sessiontest.Await(t, "low is held again", func() bool { return low.Held(0) })
	high.Close()
	sessiontest.Await(t, "low runs when high is gone", func() bool { return !low.Held(0) })
	st := h.Loop.Stats()
	if n, _, _ := st.BusyToDecision.Quantiles(0.5); n < 3 {
		t.Errorf("%d latencies recorded", n)
	}
	if h.Metrics.GateHolds.Load() < 2 || st.Scheduling == "" {
		t.Errorf("holds %d, scheduling %q", h.Metrics.GateHolds.Load(), st.Scheduling)
	}
}

func TestHardwareIsUsedWhenObjectsArrive(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c); c.Engine.Mode = model.ModeSuspend })
	low, high := h.Client(t, -10, wire.LevelAuto), h.Client(t, 10, wire.LevelAuto)
	low.Queue(0)
	high.Queue(0)
	low.Busy(0, true)
	high.Busy(0, true)
	sessiontest.Await(t, "low is held at the gate first", func() bool { return low.Held(0) })
	v, err := h.Clients(context.Background())
	if err != nil || v[0].Queues[0].Level != model.LevelBlock || v[0].Queues[0].Reason == "" {
		t.Fatalf("%+v %v", v, err)
	}
	low.HandOver(t)
	sessiontest.Await(t, "level is raised: hardware stops, gate opens", func() bool {
		return h.Hardware(0).Now().Suspend == model.LevelInterrupt && !low.Held(0)
	})
	if e, d := low.Lease(); e == 0 || d == 0 {
		t.Error("no lease in the page")
	}
	_, d1 := low.Lease()
	sessiontest.Await(t, "deadline moves", func() bool { _, d := low.Lease(); return d > d1 })
	// After the client has recovered by itself, the daemon suspends it again.
	e1, _ := low.Lease()
	low.Recovered(e1)
	sessiontest.Await(t, "a new epoch", func() bool {
		e, _ := low.Lease()
		return e > e1 && h.Hardware(0).Now().Suspend == model.LevelInterrupt
	})
	high.Busy(0, false)
	sessiontest.Await(t, "low runs", func() bool { return h.Hardware(0).Now().Suspend == 0 })
	sessiontest.Await(t, "lease ends", func() bool { _, d := low.Lease(); return d == 0 })
}

func TestHeldByHand(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 0, wire.LevelAuto)
	c.HandOver(t)
	c.Queue(0)
	c.Busy(0, true)
	sessiontest.Await(t, "level 3", func() bool {
		v, _ := h.Clients(context.Background())
		return len(v[0].Queues) == 1 && v[0].Queues[0].Level == model.LevelInterrupt
	})
	if err := h.SetHeld(context.Background(), os.Getpid(), true); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "suspended", func() bool { return h.Hardware(0).Now().Suspend == model.LevelInterrupt })
	if err := h.SetHeld(context.Background(), os.Getpid(), false); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "resumed", func() bool { return h.Hardware(0).Now().Suspend == 0 })
	if err := h.SetHeld(context.Background(), 1, true); !errors.Is(err, loop.ErrUnknownPID) {
		t.Errorf("unknown pid: %v", err)
	}
}

func TestHeartbeat(t *testing.T) {
	h := sessiontest.Start(t, nil)
	c := h.Client(t, 0, 0)
	if now := clock.Now(); now.Sub(c.Page.LastHeartbeat()) > time.Second {
		t.Error("no heartbeat before the welcome")
	}
	last := c.Page.LastHeartbeat()
	for range 3 {
		sessiontest.Await(t, "next heartbeat", func() bool { return c.Page.LastHeartbeat() > last })
		last = c.Page.LastHeartbeat()
	}
}

// A device that never answers delays neither the loop, nor other clients, nor the end of the session.
func TestStuckDevice(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c); c.Engine.Mode = model.ModeSuspend })
	stuck, low, high := h.Client(t, -10, 0), h.Client(t, -10, 0), h.Client(t, 10, 0)
	hang := make(chan struct{})
	h.Hardware(0).Hang = hang
	for _, c := range []*sessiontest.Client{stuck, low, high} {
		c.HandOver(t)
		c.Queue(0)
	}
	sessiontest.Await(t, "levels", func() bool {
		v, _ := h.Clients(context.Background())
		n := 0
		for _, s := range v {
			if len(s.Queues) == 1 && s.Queues[0].Level == model.LevelInterrupt {
				n++
			}
		}
		return n == 3
	})
	stuck.Busy(0, true)
	low.Busy(0, true)
	high.Busy(0, true)
	sessiontest.Await(t, "the other low stops", func() bool { return h.Hardware(1).Now().Suspend != 0 })
	sessiontest.Await(t, "stuck one shows", func() bool {
		for _, s := range h.Server.Stats().Targets {
			if s.StuckSince != 0 {
				return true
			}
		}
		return false
	})
	high.Busy(0, false)
	sessiontest.Await(t, "the other low runs", func() bool { return h.Hardware(1).Now().Suspend == 0 })
	_ = stuck.Conn.Close()
	sessiontest.Await(t, "stuck one's files closed", h.Hardware(0).Closed.Load)
	close(hang)
}

func TestThousandClientsLeakNothing(t *testing.T) {
	h := sessiontest.Start(t, nil)
	round := func(n int) {
		for range n {
			c, err := sessiontest.Dial(h.Path, wire.Hello{PID: 1})
			if err != nil {
				t.Fatal(err)
			}
			c.HandOver(t)
			c.Queue(0)
			c.Busy(0, true)
			c.Close()
		}
		sessiontest.Await(t, "all forgotten", func() bool { return h.Server.Stats().Sessions == 0 })
	}
	round(50)
	before := sessiontest.OpenFDs(t)
	round(1000)
	sessiontest.Await(t, "no descriptor left", func() bool { return sessiontest.OpenFDs(t) <= before })
	if total, queues := h.Server.Stats().SessionsTotal, h.Loop.Stats().Queues; total != 1050 || queues != 0 {
		t.Errorf("%d sessions, %d queues left", total, queues)
	}
}

func TestCloseResumesAll(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c); c.Engine.Mode = model.ModeSuspend })
	low, gated, high := h.Client(t, -10, 0), h.Client(t, -10, wire.LevelBlock), h.Client(t, 10, 0)
	low.HandOver(t)
	for _, c := range []*sessiontest.Client{low, gated, high} {
		c.Queue(0)
		c.Busy(0, true)
	}
	sessiontest.Await(t, "suspended", func() bool { return h.Hardware(0).Now().Suspend != 0 && gated.Held(0) })
	h.Close()
	if h.Hardware(0).Now() != (model.Desired{Queue: h.Hardware(0).Now().Queue}) || gated.Held(0) {
		t.Error("a client is still suspended")
	}
	if !h.Hardware(0).Closed.Load() {
		t.Error("files still open")
	}
}

// BenchmarkBusyToDecision measures the time from an idle-to-busy transition to the end of the decision,
// beside a process that spins.
func BenchmarkBusyToDecision(b *testing.B) {
	h := sessiontest.Start(b, nil)
	spin := exec.Command("sh", "-c", "while :; do :; done")
	if err := spin.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = spin.Process.Kill(); _ = spin.Wait() }()
	low, high := h.Client(b, -10, wire.LevelBlock), h.Client(b, 10, wire.LevelBlock)
	low.Queue(0)
	high.Queue(0)
	low.Busy(0, true)
	for b.Loop() {
		high.Busy(0, true)
		time.Sleep(200 * time.Microsecond)
		high.Busy(0, false)
		time.Sleep(800 * time.Microsecond)
	}
	n, at, top := h.Loop.Stats().BusyToDecision.Quantiles(0.5, 0.99)
	b.ReportMetric(float64(at[0].Nanoseconds())/1000, "p50-us")
	b.ReportMetric(float64(at[1].Nanoseconds())/1000, "p99-us")
	b.ReportMetric(float64(top.Nanoseconds())/1000, "max-us")
	_, d, _ := h.Loop.Stats().Decision.Quantiles(0.99)
	b.ReportMetric(float64(d[0].Nanoseconds())/1000, "decide-p99-us")
	b.Logf("%d changes, engine thread: %s", n, h.Loop.Stats().Scheduling)
}
