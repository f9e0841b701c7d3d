// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// This file models batched submission (shim/core/work_batch.c): kernels wait on the device until the
// program waits for them, the burst is complete, or a thread of the program's library releases it. A channel
// that waits for a value is not runnable, so the device sees the work of a batch when it is released.

// The limits of a batch, as in the shim.
const (
	batchMost    = 256
	batchTick    = 500 * time.Microsecond
	batchLongest = 12 * time.Millisecond
)

// batch is the work of a rank that waits on the device.
type batch struct {
	work  []gpumodel.Work
	since model.Time // of its first kernel
	seen  int        // size at the last tick
	armed bool       // a tick is due
}

// gathers adds work to the batch, and reports false if it must go to the device at once. Work after
// a batch of the same stream waits for it, whatever it is.
func (r *rank) gathers(w gpumodel.Work) bool {
	b := &r.batch
	if len(b.work) == 0 && (r.gate.gather == 0 || w.Kind != gpumodel.WorkKernel) {
		return false
	}
	if len(b.work) == 0 {
		b.since, b.seen = r.inst.cell.now, 0
	}
	b.work = append(b.work, w)
	switch {
	case len(b.work) >= min(batchMost, max(int(r.gate.gather), 1)):
		r.releaseBatch()
	case !b.armed:
		b.armed = true
		r.armBatch()
	}
	return true
}

func (r *rank) armBatch() {
	c := r.inst.cell
	c.timers.Push(c.now.Add(batchTick), timer{timerBatch, r.inst})
}

// tickBatch releases a batch that got no work for two ticks or has waited too long.
func (r *rank) tickBatch() {
	b := &r.batch
	if !b.armed {
		return
	}
	if len(b.work) == b.seen || r.inst.cell.now.Sub(b.since) >= batchLongest {
		r.releaseBatch()
	}
	b.seen = len(b.work)
	if b.armed = len(b.work) > 0; b.armed {
		r.armBatch()
	}
}

// releaseBatch lets the work of a batch run.
func (r *rank) releaseBatch() {
	b := &r.batch
	if len(b.work) > 0 {
		r.page.bursts++
	}
	for _, w := range b.work {
		if len(r.held) > 0 || !r.open() {
			r.held = append(r.held, w)
		} else {
			r.send(w)
		}
	}
	b.work = b.work[:0]
}
