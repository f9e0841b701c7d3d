// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"golang.org/x/sys/unix"

	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// retirement counts a queue's completed work and folds each block into a checksum, which reveals
// lost and repeated blocks.
type retirement struct {
	submitted, retired uint64
	checksum           uint64
	waiters            []retireWaiter
	memory             vram
	account            *gpumodel.Account
	effects            map[uint64]effect // by sequence number
}

type retireWaiter struct {
	sequence uint64
	call     *call
}

// Blocks executes a part of a kernel.
func (r *retirement) Blocks(w *gpumodel.Work, from, to int) {
	e := r.effects[w.Seq]
	if e.op != opKernel {
		return
	}
	for b := from; b < to; b++ {
		r.checksum = Fold(r.checksum, w.Seed, uint32(b))
	}
	if e.dst != 0 {
		r.memory.fold(e.dst-1, w.Seed, from, to)
	}
}

// Fold applies one block of a kernel to the checksum.
func Fold(word uint64, seed, block uint32) uint64 {
	word ^= uint64(seed)<<32 | uint64(block)
	return (word<<23|word>>41)*0x9E3779B97F4A7C15 + 1
}

// CopyStart implements gpumodel.Sink; no queue uses the copy engine.
func (r *retirement) CopyStart(*gpumodel.Work) {}

// CopyReady implements gpumodel.Sink.
func (r *retirement) CopyReady(*gpumodel.Work) bool { return true }
func (r *retirement) Reached(*gpumodel.Work) bool   { return true }

// Done records completed work and applies its effect.
func (r *retirement) Done(w *gpumodel.Work, at model.Time) {
	r.retired = w.Seq
	if e, ok := r.effects[w.Seq]; ok {
		if w.Kind == gpumodel.WorkKernel && e.op != opKernel { // the model has no other work for a compute queue
			r.account.Kernels--
			r.account.Copies++
		}
		r.memory.apply(e, at)
		delete(r.effects, w.Seq)
	}
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

// release answers the waiters of a removed queue.
func (r *retirement) release() {
	for _, w := range r.waiters {
		w.call.done(fails(unix.EIO))
	}
	r.waiters = nil
}

// submit adds work to a compute queue, in place of packets in its ring.
func (k *Kernel) submit(c *call) {
	q := c.process.queue(c.u32(0))
	e := effect{op: c.u32(20), dst: c.u64(24), src: c.u64(32), amount: c.u64(8), value: c.u32(16), width: c.u32(40)}
	count := c.u32(4)
	if q == nil || q.channel == nil || count == 0 || count > 4096 || !e.valid() {
		c.done(fails(unix.EINVAL))
		return
	}
	w := gpumodel.Work{Kind: gpumodel.WorkKernel, Duration: e.duration(), Seed: e.value}
	switch e.op {
	case opMark:
		w.Kind = gpumodel.WorkMark
	case opWait:
		on := c.process.queue(c.u32(44))
		if on == nil || on.channel == nil || on.gpu != q.gpu {
			c.done(fails(unix.EINVAL))
			return
		}
		w.Kind, w.On, w.OnSeq = gpumodel.WorkWait, on.channel, c.u64(48)
	}
	g := k.gpu(q.gpu).model
	for range count {
		q.sink.submitted++
		w.Seq = q.sink.submitted
		if e.op != opKernel || e.dst != 0 {
			q.sink.effects[w.Seq] = e
		}
		g.Submit(q.channel, w)
	}
	c.done(0)
}

// retired reports a queue's completed work; with wait set, once the given sequence has completed.
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
