// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/wire"
)

func TestGateFollowsPriority(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { strangers(c) })
	low, high := h.join(t, -10, wire.LevelBlock), h.join(t, 10, wire.LevelBlock)
	low.queue(0)
	high.queue(0)
	await(t, "queues are known", func() bool { return h.Stats().Queues == 2 })
	low.busy(0, true)
	high.busy(0, true)
	await(t, "low is held", func() bool { return low.held(0) })
	if high.held(0) {
		t.Error("high is held")
	}
	high.busy(0, false)
	await(t, "low runs", func() bool { return !low.held(0) })
	high.busy(0, true)
	await(t, "low is held again", func() bool { return low.held(0) })
	high.close()
	await(t, "low runs when high is gone", func() bool { return !low.held(0) })
	st := h.Stats()
	if n, _, _ := st.BusyToDecision.Quantiles(0.5); n < 3 {
		t.Errorf("%d latencies recorded", n)
	}
	if h.metrics.GateHolds.Load() < 2 || st.Scheduling == "" {
		t.Errorf("holds %d, scheduling %q", h.metrics.GateHolds.Load(), st.Scheduling)
	}
}

func TestHardwareIsUsedWhenObjectsArrive(t *testing.T) {
	h := startHub(t, func(c *Config, e *engine.Config) { strangers(c); e.Mode = model.ModeSuspend })
	low, high := h.join(t, -10, wire.LevelAuto), h.join(t, 10, wire.LevelAuto)
	low.queue(0)
	high.queue(0)
	low.busy(0, true)
	high.busy(0, true)
	await(t, "low is held at the gate first", func() bool { return low.held(0) })
	v, err := h.Sessions(context.Background())
	if err != nil || v[0].Queues[0].Level != model.LevelBlock || v[0].Queues[0].Reason == "" {
		t.Fatalf("%+v %v", v, err)
	}
	low.handOver(t)
	await(t, "level is raised: hardware stops, gate opens", func() bool {
		return h.hardware(0).now().Suspend == model.LevelInterrupt && !low.held(0)
	})
	if e, d := low.page.Lease(); e == 0 || d == 0 {
		t.Error("no lease in the page")
	}
	_, d1 := low.page.Lease()
	await(t, "deadline moves", func() bool { _, d := low.page.Lease(); return d > d1 })
	// The client says it had to help itself: the suspension is made anew.
	e1, _ := low.page.Lease()
	low.page.SetRecovered(e1)
	await(t, "a new epoch", func() bool {
		e, _ := low.page.Lease()
		return e > e1 && h.hardware(0).now().Suspend == model.LevelInterrupt
	})
	high.busy(0, false)
	await(t, "low runs", func() bool { return h.hardware(0).now().Suspend == 0 })
	await(t, "lease ends", func() bool { _, d := low.page.Lease(); return d == 0 })
}

func TestHeldByHand(t *testing.T) {
	h := startHub(t, nil)
	c := h.join(t, 0, wire.LevelAuto)
	c.handOver(t)
	c.queue(0)
	c.busy(0, true)
	await(t, "level 3", func() bool {
		v, _ := h.Sessions(context.Background())
		return len(v[0].Queues) == 1 && v[0].Queues[0].Level == model.LevelInterrupt
	})
	if err := h.SetHeld(context.Background(), os.Getpid(), true); err != nil {
		t.Fatal(err)
	}
	await(t, "suspended", func() bool { return h.hardware(0).now().Suspend == model.LevelInterrupt })
	if err := h.SetHeld(context.Background(), os.Getpid(), false); err != nil {
		t.Fatal(err)
	}
	await(t, "resumed", func() bool { return h.hardware(0).now().Suspend == 0 })
	if err := h.SetHeld(context.Background(), 1, true); !errors.Is(err, ErrUnknownPID) {
		t.Errorf("unknown pid: %v", err)
	}
}

func TestHeartbeat(t *testing.T) {
	h := startHub(t, nil)
	c := h.join(t, 0, 0)
	if now := clock.Now(); now.Sub(c.page.LastHeartbeat()) > time.Second {
		t.Error("no heartbeat before the welcome")
	}
	last := c.page.LastHeartbeat()
	for range 3 {
		await(t, "next heartbeat", func() bool { return c.page.LastHeartbeat() > last })
		last = c.page.LastHeartbeat()
	}
}

// A target that never answers holds up neither the loop nor the others, nor the end.
func TestStuckDevice(t *testing.T) {
	h := startHub(t, func(c *Config, e *engine.Config) { strangers(c); e.Mode = model.ModeSuspend })
	stuck, low, high := h.join(t, -10, 0), h.join(t, -10, 0), h.join(t, 10, 0)
	hang := make(chan struct{})
	h.hardware(0).hang = hang
	for _, c := range []*client{stuck, low, high} {
		c.handOver(t)
		c.queue(0)
	}
	await(t, "levels", func() bool {
		v, _ := h.Sessions(context.Background())
		n := 0
		for _, s := range v {
			if len(s.Queues) == 1 && s.Queues[0].Level == model.LevelInterrupt {
				n++
			}
		}
		return n == 3
	})
	stuck.busy(0, true)
	low.busy(0, true)
	high.busy(0, true)
	await(t, "the other low stops", func() bool { return h.hardware(1).now().Suspend != 0 })
	await(t, "stuck one shows", func() bool {
		for _, s := range h.Stats().Targets {
			if s.StuckSince != 0 {
				return true
			}
		}
		return false
	})
	high.busy(0, false)
	await(t, "the other low runs", func() bool { return h.hardware(1).now().Suspend == 0 })
	_ = stuck.conn.Close()
	await(t, "stuck one's files closed", h.hardware(0).closed.Load)
	close(hang)
}

func TestThousandClientsLeakNothing(t *testing.T) {
	h := startHub(t, nil)
	round := func(n int) {
		for range n {
			c, err := dial(h.path, wire.Hello{PID: 1})
			if err != nil {
				t.Fatal(err)
			}
			c.handOver(t)
			c.queue(0)
			c.busy(0, true)
			c.close()
		}
		await(t, "all forgotten", func() bool { return h.count() == 0 })
	}
	round(50)
	before := openFDs(t)
	round(1000)
	await(t, "no descriptor left", func() bool { return openFDs(t) <= before })
	st := h.Stats()
	if st.SessionsTotal != 1050 || st.Queues != 0 {
		t.Errorf("%+v", st)
	}
}

func TestCloseSetsEverybodyFree(t *testing.T) {
	h := startHub(t, func(c *Config, e *engine.Config) { strangers(c); e.Mode = model.ModeSuspend })
	low, gated, high := h.join(t, -10, 0), h.join(t, -10, wire.LevelBlock), h.join(t, 10, 0)
	low.handOver(t)
	for _, c := range []*client{low, gated, high} {
		c.queue(0)
		c.busy(0, true)
	}
	await(t, "suspended", func() bool { return h.hardware(0).now().Suspend != 0 && gated.held(0) })
	h.Close()
	if h.hardware(0).now() != (model.Desired{Queue: h.hardware(0).now().Queue}) || gated.held(0) {
		t.Error("somebody is still suspended")
	}
	if !h.hardware(0).closed.Load() {
		t.Error("files still open")
	}
	if _, err := os.Lstat(h.path); err == nil {
		t.Error("socket left behind")
	}
}

// BenchmarkBusyToDecision measures from an application's idle->busy change to
// the end of the decision about it, with one process that spins beside.
func BenchmarkBusyToDecision(b *testing.B) {
	h := startHub(b, nil)
	spin := exec.Command("sh", "-c", "while :; do :; done")
	if err := spin.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = spin.Process.Kill(); _ = spin.Wait() }()
	low, high := h.join(b, -10, wire.LevelBlock), h.join(b, 10, wire.LevelBlock)
	low.queue(0)
	high.queue(0)
	low.busy(0, true)
	for b.Loop() {
		high.busy(0, true)
		time.Sleep(200 * time.Microsecond)
		high.busy(0, false)
		time.Sleep(800 * time.Microsecond)
	}
	n, at, top := h.Stats().BusyToDecision.Quantiles(0.5, 0.99)
	b.ReportMetric(float64(at[0].Nanoseconds())/1000, "p50-us")
	b.ReportMetric(float64(at[1].Nanoseconds())/1000, "p99-us")
	b.ReportMetric(float64(top.Nanoseconds())/1000, "max-us")
	_, d, _ := h.Stats().Decision.Quantiles(0.99)
	b.ReportMetric(float64(d[0].Nanoseconds())/1000, "decide-p99-us")
	b.Logf("%d changes, engine thread: %s", n, h.Stats().Scheduling)
}
