// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"slices"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// queue is a hardware queue of a process.
type queue struct {
	id, gpu, kind       uint32
	ring                uint64
	bytes               uint32
	percentage          uint32
	priority            uint32
	readPointer         uint64
	writePointer        uint64
	saveAddress         uint64
	saveBytes, ctlBytes uint32
	doorbell            uint32 // number in the process's page
	sdma                sdmaSlot
	cuMask              []byte
	gws, reset          bool

	// State set by a debugger.
	suspended  bool
	destroying bool
	exceptions uint64 // EC_QUEUE_NEW until a snapshot clears it

	mapped  bool // in the runlist
	channel *gpumodel.Channel
	sink    *retirement
}

func (q *queue) compute() bool {
	return q.kind == abi.KFD_IOC_QUEUE_TYPE_COMPUTE || q.kind == abi.KFD_IOC_QUEUE_TYPE_COMPUTE_AQL
}

// active reports whether the queue belongs in the runlist.
func (q *queue) active() bool {
	return q.bytes > 0 && q.ring != 0 && q.percentage&0xff > 0 && !q.suspended
}

func (p *Process) queue(id uint32) *queue {
	for _, q := range p.queues {
		if q.id == id {
			return q
		}
	}
	return nil
}

const numbersPerPID = 4 // with ByPID

func (k *Kernel) maxQueues() int {
	if k.config.GFX/100 == 904 || k.config.GFX/100 == 905 { // 9.4.3, 9.4.4 and 9.5.0
		return 255
	}
	return 127
}

func (k *Kernel) createQueue(c *call) {
	p := c.process
	kind, id := c.u32(40), c.u32(36)
	g := k.gpu(id)
	_, bound := p.vms[id]
	failure := checkCreate(c)
	switch {
	case failure != 0:
	case kind >= uint32(len(sysfsType)):
		failure = eNOTSUPP
	case g == nil:
		failure = unix.EINVAL
	case !bound:
		failure = unix.ESRCH
	case k.config.Minor >= minorRingTest && !k.acquireBuffers(c):
		failure = unix.EINVAL
	case p.queuesOn(id) >= k.maxQueues():
		failure = unix.ENOSPC
	}
	if failure != 0 {
		c.done(fails(failure))
		return
	}
	q := &queue{
		id: k.freeID(p), gpu: id, kind: kind, ring: c.u64(0), bytes: max(c.u32(32), minRing), percentage: c.u32(44), priority: c.u32(48),
		writePointer: c.u64(8), readPointer: c.u64(16), saveAddress: c.u64(72), saveBytes: c.u32(80), ctlBytes: c.u32(84),
		exceptions: abi.KFD_EC_MASK_QUEUE_NEW,
	}
	if !g.assignDoorbell(p, q, c.u32(88)) {
		c.done(fails(unix.ENOMEM))
		return
	}
	if q.compute() {
		q.sink = &retirement{memory: p.memoryOf(id), account: p.account, effects: map[uint64]effect{}}
		q.channel = g.model.AddChannel(p.group(g), q.sink)
		q.mapped = true
	}
	p.queues = append(p.queues, q)
	c.put32(52, q.id)
	c.put64(24, mmapDoorbell|uint64(id)<<mmapGPUShift|uint64(q.doorbell*doorbellBytes))
	k.system.Changed(p)
	k.raise(p, abi.KFD_EC_MASK_QUEUE_NEW)
	k.remap(g, q, func(bool) { c.done(0) })
}

// group returns the process's channel group on a GPU.
func (p *Process) group(g *gpu) *gpumodel.Group {
	if p.groups[g.id] == nil {
		p.groups[g.id] = g.model.AddGroup(p.account, false)
		g.model.Schedule(p.groups[g.id])
	}
	return p.groups[g.id]
}

func (p *Process) queuesOn(gpu uint32) (n int) {
	for _, q := range p.queues {
		if q.gpu == gpu {
			n++
		}
	}
	return n
}

// freeID returns an unused queue number of the process.
func (k *Kernel) freeID(p *Process) uint32 {
	if k.config.Numbers == ByPID {
		first := uint32(p.PID) % (maxQueueID / numbersPerPID) * numbersPerPID
		for id := first; id < first+numbersPerPID; id++ {
			if p.queue(id) == nil {
				return id
			}
		}
	}
	for id := uint32(0); ; id++ {
		if p.queue(id) == nil {
			return id
		}
	}
}

func (k *Kernel) destroyQueue(c *call) {
	p := c.process
	q := p.queue(c.u32(0))
	if q == nil || q.destroying {
		c.done(fails(unix.EINVAL))
		return
	}
	q.destroying = true
	finish := func() {
		g := k.gpu(q.gpu)
		for i, other := range p.queues {
			if other == q {
				p.queues = append(p.queues[:i], p.queues[i+1:]...)
				break
			}
		}
		k.drop(q)
		k.system.Changed(p)
		k.remap(g, nil, func(bool) { c.done(0) })
	}
	if q.suspended { // deferred until a debugger resumes it
		p.waiting = append(p.waiting, func() {
			if p.queue(q.id) == q && !q.suspended {
				finish()
			}
		})
		return
	}
	finish()
}

// drop removes a queue from its device.
func (k *Kernel) drop(q *queue) {
	delete(k.gpu(q.gpu).sdma, q.sdma)
	if q.channel != nil {
		k.gpu(q.gpu).model.RemoveChannel(q.channel)
		q.sink.release()
	}
}

func (k *Kernel) updateQueue(c *call) {
	p := c.process
	if e := checkRing(c.u32(16), c.u32(20), c.u64(0), c.u32(12)); e != 0 {
		c.done(fails(e))
		return
	}
	ring, bytes := c.u64(0), max(c.u32(12), minRing)
	q := p.queue(c.u32(8))
	switch {
	case p.wedged:
		return // blocked by the leaked lock
	case q == nil:
		c.done(fails(unix.EFAULT))
		return
	case ring != 0 && k.config.Minor >= minorRingTest && !p.buffer(q.gpu, ring, uint64(bytes)):
		p.wedged = k.config.Variant == DKMS // returns without releasing the root of the VM
		c.done(fails(unix.EFAULT))
		return
	case q.reset:
		c.done(fails(unix.EACCES))
		return
	}
	q.ring, q.bytes, q.percentage, q.priority = ring, bytes, c.u32(16), c.u32(20)
	k.remap(k.gpu(q.gpu), q, func(ok bool) {
		if !ok {
			c.done(fails(unix.ETIME))
			return
		}
		c.done(0)
	})
}

func (k *Kernel) setCUMask(c *call) {
	n := c.u32(4)
	if n%32 != 0 || n == 0 {
		c.done(fails(unix.EINVAL))
		return
	}
	n = min(n, maxCUMask)
	if c.fault || len(c.params) < int(n/8) {
		c.done(fails(unix.EFAULT))
		return
	}
	q := c.process.queue(c.u32(0))
	if q == nil {
		c.done(fails(unix.EFAULT))
		return
	}
	mask := append([]byte(nil), c.params[:n/8]...)
	if k.config.GFX >= 100000 {
		for _, b := range mask { // a workgroup processor has two compute units
			if b>>1&0x55 != b&0x55 {
				c.done(fails(unix.EINVAL))
				return
			}
		}
	}
	q.cuMask = mask
	k.remap(k.gpu(q.gpu), q, func(bool) { c.done(0) })
}

// allocGWS assigns global wave sync, which one queue of a process can have on a GPU.
func (k *Kernel) allocGWS(c *call) {
	p := c.process
	q := p.queue(c.u32(0))
	if q == nil {
		c.done(fails(unix.EINVAL))
		return
	}
	wanted, had := c.u32(4) > 0, slices.ContainsFunc(p.queues, func(other *queue) bool { return other.gpu == q.gpu && other.gws })
	switch {
	case p.debug.enabled && !k.config.gwsUnderDebugger(), wanted && had:
		c.done(fails(unix.EBUSY))
		return
	case !wanted && !had:
		c.done(fails(unix.EINVAL))
		return
	}
	q.gws = wanted
	c.put32(8, 0)
	c.done(0)
}

// remap updates the device to the queues' state. HWS unmaps all queues of every process, waits, and
// maps the active ones; MES touches only the changed one (nil if it is gone). done receives whether
// the firmware replied.
func (k *Kernel) remap(g *gpu, changed *queue, done func(ok bool)) {
	if k.faults.UnmapFails {
		g.model.After(0, func(model.Time) { done(false) })
		return
	}
	k.remaps++
	var all, on, off []*gpumodel.Channel
	for _, p := range k.processes {
		for _, q := range p.queues {
			if q.gpu != g.id || q.channel == nil || (k.config.Scheduler == MES && q != changed) {
				continue
			}
			if q.mapped {
				all = append(all, q.channel)
			}
			if q.mapped = q.active() || k.faults.SuspendNoop; q.mapped {
				on = append(on, q.channel)
			} else {
				off = append(off, q.channel)
			}
		}
	}
	if k.config.Scheduler == MES {
		if len(off) > 0 {
			g.model.Disable(off, true, false, func(model.Time) { done(true) })
		} else {
			g.model.Disable(on, false, false, func(model.Time) { done(true) })
		}
		return
	}
	g.model.Disable(all, true, false, nil)
	g.model.Disable(on, false, false, func(model.Time) { done(true) })
}
