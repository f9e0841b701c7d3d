// SPDX-License-Identifier: Apache-2.0

// Package gate is level 1: a flag in the shared page that holds further
// launches in the application, and limits on what it has in flight.
package gate

import (
	"context"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// Page is the daemon's half of the queues of a shared page.
type Page interface {
	SetGate(slot int, held bool)
	SetLimits(slot int, inFlight, batch uint32)
}

// Target is the gate of one queue. Apply only writes memory and never blocks,
// so the engine loop calls it directly and no reconciler stands between. The
// client opens a gate by itself when the heartbeat stops: no lease is needed.
type Target struct {
	page    Page
	slot    int
	metrics *driver.Metrics

	known           bool
	held            bool
	inFlight, batch uint32
}

var _ driver.Target = (*Target)(nil)

// New is the gate of a slot, whose state is not known yet.
func New(page Page, slot int, metrics *driver.Metrics) *Target {
	return &Target{page: page, slot: slot, metrics: metrics}
}

// Apply closes the gate for LevelBlock and opens it for everything else: at
// the higher levels it is the hardware that stops the work.
func (t *Target) Apply(_ context.Context, want model.Desired) error {
	held := want.Suspend == model.LevelBlock
	inFlight, batch := clamp(want.InFlight), clamp(want.Batch)
	if !t.known || inFlight != t.inFlight || batch != t.batch {
		t.page.SetLimits(t.slot, inFlight, batch)
	}
	if !t.known || held != t.held {
		if held {
			t.metrics.GateHolds.Add(1)
		}
		t.page.SetGate(t.slot, held)
	}
	t.known, t.held, t.inFlight, t.batch = true, held, inFlight, batch
	return nil
}

// Invalidate makes the next Apply write everything.
func (t *Target) Invalidate() { t.known = false }

// Close opens the gate: nobody is left waiting at a queue that is gone.
func (t *Target) Close() error {
	t.known = false
	return t.Apply(context.Background(), model.Desired{})
}

func clamp(n int) uint32 {
	return uint32(min(max(n, 0), 1<<20))
}
