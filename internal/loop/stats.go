// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"sync/atomic"

	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/model"
)

// Stats are the metrics of the loop.
type Stats struct {
	Scheduling                     string
	Queues                         int
	Wakes, Rings, Decisions        uint64
	BusyToDecision, Decision, Late *driver.Histogram
	Waits                          *driver.Histogram
	Snapshots                      uint64       // published to readers
	Merged, RefusedQueues          int          // queues beyond their user's limit, and beyond all limits
	Throttled                      uint64       // doorbells ignored until the next window
	Busy                           uint64       // requests refused because the user has too many
	Heartbeat                      model.Time   // the last one
	Engine                         engine.Stats // as of the last heartbeat
	HostBudget, HostGranted        model.Bytes  // host memory for moves, and what programs may have of it
}

// Stats returns the metrics. It works while the loop is blocked.
func (l *Loop) Stats() Stats {
	st := Stats{
		Queues: int(l.merge.queues.Load()),
		Wakes:  l.stats.wakes.Load(), Rings: l.stats.rings.Load(), Decisions: l.stats.decisions.Load(),
		BusyToDecision: &l.stats.busyToDecision, Decision: &l.stats.decision, Late: &l.stats.late, Waits: &l.activity.waits,
		Heartbeat: model.Time(l.stats.beat.Load()), Snapshots: l.snapshots.Load(),
		Merged: int(l.merge.merged.Load()), RefusedQueues: int(l.merge.refused.Load()), Throttled: l.pace.throttles.Load(), Busy: l.refused.Load(),
	}
	st.HostBudget, st.HostGranted = l.cfg.HostMemory, model.Bytes(l.memory.granted.Load())
	if p := l.stats.scheduling.Load(); p != nil {
		st.Scheduling = *p
	}
	if counts := l.stats.counts.Load(); counts != nil {
		st.Engine = *counts
	}
	return st
}

// counters are the metrics of the passes. Any goroutine reads them.
type counters struct {
	beat                           atomic.Int64 // model.Time of the last heartbeat
	wakes, rings, decisions        atomic.Uint64
	counts                         atomic.Pointer[engine.Stats] // as of the last heartbeat
	busyToDecision, decision, late driver.Histogram
	scheduling                     atomic.Pointer[string]
}
