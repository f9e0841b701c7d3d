// SPDX-License-Identifier: Apache-2.0

// Package gate implements level 1: a flag in the shared page that holds launches in the
// application, and limits on launches in flight.
package gate

import (
	"context"

	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// Page is the daemon's half of a shared page's queues.
type Page interface {
	SetGate(slot int, state uint32)
	SetLimits(slot int, inFlight, batch uint32)
}

// Target is the gate of one queue. Apply only writes memory, so the engine loop calls it without a
// worker. Clients open gates when the heartbeat stops, so no lease is needed.
type Target struct {
	page    Page
	slot    int
	metrics *driver.Metrics

	known           bool
	state           uint32
	inFlight, batch uint32
}

var _ driver.Target = (*Target)(nil)

// New returns the gate of a slot in unknown state.
func New(page Page, slot int, metrics *driver.Metrics) *Target {
	return &Target{page: page, slot: slot, metrics: metrics}
}

// Apply closes the gate for LevelBlock only; at higher levels the hardware stops the work.
func (t *Target) Apply(_ context.Context, want model.Desired) error {
	state := uint32(wire.GateOpen)
	switch {
	case want.Suspend == model.LevelBlock:
		state = wire.GateHeld
	case want.Gather > 0 && want.Suspend == 0:
		state = wire.GateBatch | min(want.Gather, wire.BurstMax)<<wire.BurstShift
	}
	inFlight, batch := clamp(want.InFlight), clamp(want.Batch)
	if !t.known || inFlight != t.inFlight || batch != t.batch {
		t.page.SetLimits(t.slot, inFlight, batch)
	}
	if !t.known || state != t.state {
		if state == wire.GateHeld {
			t.metrics.GateHolds.Add(1)
		}
		t.page.SetGate(t.slot, state)
	}
	t.known, t.state, t.inFlight, t.batch = true, state, inFlight, batch
	return nil
}

// Held reports whether the gate is known to be closed.
func (t *Target) Held() bool { return t.known && t.state == wire.GateHeld }

// Invalidate makes the next Apply write every field.
func (t *Target) Invalidate() { t.known = false }

// Close opens the gate, so that no launch waits on a removed queue.
func (t *Target) Close() error {
	t.known = false
	return t.Apply(context.Background(), model.Desired{})
}

func clamp(n int) uint32 {
	return uint32(min(max(n, 0), 1<<20))
}
