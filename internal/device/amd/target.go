// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"context"
	"fmt"
	"sync"

	"xsched/internal/device"
	"xsched/internal/model"
)

var _ device.Target = (*DebugTarget)(nil)

// DebugTarget drives a process through its debugger: Lv3 by suspending its queues.
// The driver has no timeslice per process, so a wish for one is no error and no effect.
type DebugTarget struct {
	debugger *Debugger
	metrics  *device.Metrics
	kinds    Kinds

	mu    sync.Mutex
	known bool
	state bool // suspended
}

// NewDebugTarget takes the debugger over.
func NewDebugTarget(d *Debugger, kinds Kinds, metrics *device.Metrics) *DebugTarget {
	return &DebugTarget{debugger: d, kinds: kinds, metrics: metrics}
}

// Capability is what this route does.
func (t *DebugTarget) Capability() device.Capability {
	return device.Capability{MaxLevel: model.LevelInterrupt}
}

// Apply suspends or resumes.
func (t *DebugTarget) Apply(_ context.Context, want model.Desired) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	suspend := want.Suspend >= model.LevelDeactivate
	if t.known && t.state == suspend {
		return nil
	}
	t.known = false
	if suspend {
		if _, err := t.debugger.Suspend(t.kinds, GraceDefault); err != nil {
			return fmt.Errorf("suspend: %w", err)
		}
		t.metrics.Suspends.Add(1)
	} else {
		if _, err := t.debugger.Resume(); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
		t.metrics.Resumes.Add(1)
	}
	t.known, t.state = true, suspend
	return nil
}

// Invalidate forgets what is known.
func (t *DebugTarget) Invalidate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = false
}

// Close ends the session, which resumes everything.
func (t *DebugTarget) Close() error { return t.debugger.Close() }
