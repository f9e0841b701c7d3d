// SPDX-License-Identifier: Apache-2.0

package kfd

import (
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/gpumodel"
	"xsched/internal/model"
)

// retirement counts what a queue has completed, and folds each block of work into a
// checksum: one that was lost or done twice shows.
type retirement struct {
	submitted, retired uint64
	checksum           uint64
	waiters            []retireWaiter
}

type retireWaiter struct {
	sequence uint64
	call     *call
}

// Blocks executes a part of a kernel.
func (r *retirement) Blocks(w *gpumodel.Work, from, to int) {
	for b := from; b < to; b++ {
		r.checksum = Fold(r.checksum, w.Seed, uint32(b))
	}
}

// Fold is what one block of a kernel does to the checksum.
func Fold(word uint64, seed, block uint32) uint64 {
	word ^= uint64(seed)<<32 | uint64(block)
	return (word<<23|word>>41)*0x9E3779B97F4A7C15 + 1
}

// CopyStart is for copies, which no queue here does.
func (r *retirement) CopyStart(*gpumodel.Work) {}

// CopyReady is for copies.
func (r *retirement) CopyReady(*gpumodel.Work) bool { return true }

// Done notes a completed kernel.
func (r *retirement) Done(w *gpumodel.Work, _ model.Time) {
	r.retired = w.Seq
	kept := r.waiters[:0]
	for _, waiter := range r.waiters {
		if waiter.sequence > r.retired {
			kept = append(kept, waiter)
			continue
		}
		r.answer(waiter.call)
	}
	r.waiters = kept
}

func (r *retirement) answer(c *call) {
	c.put64(16, r.retired)
	c.put64(24, r.checksum)
	c.done(0)
}

// release answers whoever waits for a queue that is gone.
func (r *retirement) release() {
	for _, w := range r.waiters {
		w.call.done(fails(unix.EIO))
	}
	r.waiters = nil
}

// submit gives a compute queue kernels, in place of packets in its ring.
func (k *Kernel) submit(c *call) {
	q := c.process.queue(c.u32(0))
	count, duration := c.u32(4), c.u64(8)
	if q == nil || q.channel == nil || count == 0 || count > 4096 || duration > uint64(time.Minute) {
		c.done(fails(unix.EINVAL))
		return
	}
	g := k.gpu(q.gpu).model
	for range count {
		q.sink.submitted++
		g.Submit(q.channel, gpumodel.Work{Kind: gpumodel.WorkKernel, Seq: q.sink.submitted, Duration: time.Duration(max(duration, 1)), Seed: c.u32(16)})
	}
	c.done(0)
}

// retired tells what a queue has completed; with wait set, once it is that far.
func (k *Kernel) retired(c *call) {
	q := c.process.queue(c.u32(0))
	if q == nil || q.channel == nil {
		c.done(fails(unix.EINVAL))
		return
	}
	if c.u32(4) != 0 && q.sink.retired < c.u64(8) {
		q.sink.waiters = append(q.sink.waiters, retireWaiter{c.u64(8), c})
		return
	}
	q.sink.answer(c)
}
