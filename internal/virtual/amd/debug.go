// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
)

// debugState is the debugger's view of a process.
type debugState struct {
	enabled  bool
	debugger *Process // nil: the process itself
	fd       int      // receives event notifications
	mask     uint64   // enabled exceptions
	pending  uint64   // exceptions of the process
	runtime  uint32
	rDebug   uint64
	ttmp     uint32
	blocked  []*call // RUNTIME_ENABLE calls that wait for the debugger
}

// debugTrap checks in the driver's order and executes one operation.
func (k *Kernel) debugTrap(c *call) {
	pid, op := int(int32(c.u32(0))), c.u32(4)
	if k.config.Scheduler == NoHWS {
		c.done(fails(unix.EINVAL))
		return
	}
	if pid <= 0 || !k.system.Exists(pid) {
		c.done(fails(unix.ESRCH))
		return
	}
	traces := k.system.Tracer(pid) == c.tid && c.tid != 0
	target := k.processes[pid]
	if target == nil && op == abi.KFD_IOC_DBG_TRAP_ENABLE && traces {
		target = k.open(pid, "")
	}
	if target == nil {
		c.done(fails(unix.ESRCH))
		return
	}
	registered := k.config.Variant == Upstream && target.debug.enabled && target.debug.debugger == c.process
	if target != c.process && !traces && !registered && op != abi.KFD_IOC_DBG_TRAP_DISABLE {
		c.done(fails(unix.EPERM))
		return
	}
	d := &target.debug
	if op != abi.KFD_IOC_DBG_TRAP_ENABLE && !d.enabled {
		c.done(fails(unix.EINVAL))
		return
	}
	switch op {
	case abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, abi.KFD_IOC_DBG_TRAP_RESUME_QUEUES, abi.KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE, abi.KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_MODE, abi.KFD_IOC_DBG_TRAP_SET_NODE_ADDRESS_WATCH, abi.KFD_IOC_DBG_TRAP_CLEAR_NODE_ADDRESS_WATCH, abi.KFD_IOC_DBG_TRAP_SET_FLAGS:
		if d.runtime != abi.DEBUG_RUNTIME_STATE_ENABLED {
			c.done(fails(unix.EPERM))
			return
		}
	}
	switch op {
	case abi.KFD_IOC_DBG_TRAP_ENABLE:
		k.enable(c, target)
	case abi.KFD_IOC_DBG_TRAP_DISABLE:
		k.disable(target)
		c.done(0)
	case abi.KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT:
		k.sendRuntimeEvent(c, target)
	case abi.KFD_IOC_DBG_TRAP_SET_EXCEPTIONS_ENABLED:
		d.mask = c.u64(8)
		if k.waitingEvents(target) != 0 {
			k.announce(target)
		}
		c.done(0)
	case abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES:
		k.suspend(c, target)
	case abi.KFD_IOC_DBG_TRAP_RESUME_QUEUES:
		k.resume(c, target)
	case abi.KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT:
		k.queryEvent(c, target)
	case abi.KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT:
		k.snapshot(c, target)
	case abi.KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT:
		k.deviceSnapshot(c)
	default: // unknown, or for waves and watch points, which are not modeled
		c.done(fails(unix.EINVAL))
	}
}

func (k *Kernel) enable(c *call, target *Process) {
	d := &target.debug
	gws := slices.ContainsFunc(target.queues, func(q *queue) bool { return q.gws })
	switch {
	case d.enabled:
		c.done(fails(unix.EALREADY))
		return
	case c.fd < 0:
		c.done(fails(unix.EBADF))
		return
	case k.config.GFX < 90000:
		c.done(fails(unix.ENODEV))
		return
	case gws:
		c.done(fails(unix.EBUSY))
		return
	case c.fault && c.u32(24) > 0:
		c.done(fails(unix.EFAULT))
		return
	}
	*d = debugState{enabled: true, fd: c.fd, mask: c.u64(8), runtime: d.runtime, rDebug: d.rDebug, ttmp: d.ttmp}
	c.fd = -1
	if target != c.process {
		d.debugger = c.process
	}
	info, _ := binary.Append(nil, binary.LittleEndian, &abi.RuntimeInfo{RDebug: d.rDebug, RuntimeState: d.runtime, TTMPSetup: d.ttmp})
	copy(c.params, info)
	c.put32(24, abi.RuntimeInfoBytes)
	c.done(0)
}

// disable ends a debug session: it resumes all queues and unblocks waiting calls.
func (k *Kernel) disable(target *Process) {
	d := &target.debug
	if !d.enabled {
		return
	}
	k.resumeQueues(target, target.queues, func(bool) {})
	k.system.CloseFD(d.fd)
	blocked := d.blocked
	*d = debugState{fd: -1, runtime: d.runtime, rDebug: d.rDebug, ttmp: d.ttmp}
	for _, c := range blocked {
		c.done(0)
	}
}

func (k *Kernel) sendRuntimeEvent(c *call, target *Process) {
	d := &target.debug
	if c.u64(8)&abi.KFD_EC_MASK_PROCESS_RUNTIME != 0 {
		d.pending &^= abi.KFD_EC_MASK_PROCESS_RUNTIME
		blocked := d.blocked
		d.blocked = nil
		for _, waiter := range blocked {
			waiter.done(0)
		}
	}
	c.done(0)
}

func (k *Kernel) runtimeEnable(c *call) {
	p := c.process
	d := &p.debug
	if c.u32(8)&abi.KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK != 0 {
		switch {
		case len(p.queues) > 0:
			c.done(fails(unix.EEXIST))
			return
		case d.runtime != abi.DEBUG_RUNTIME_STATE_DISABLED:
			c.done(fails(unix.EBUSY))
			return
		}
		d.runtime, d.rDebug, d.ttmp = abi.DEBUG_RUNTIME_STATE_ENABLED, c.u64(0), c.u32(8)&abi.KFD_RUNTIME_ENABLE_MODE_TTMP_SAVE_MASK>>1
	} else {
		d.runtime, d.rDebug, d.ttmp = abi.DEBUG_RUNTIME_STATE_DISABLED, 0, 0
	}
	if !d.enabled {
		c.done(0)
		return
	}
	d.pending |= abi.KFD_EC_MASK_PROCESS_RUNTIME
	d.blocked = append(d.blocked, c)
	k.announce(p)
}

// raise sets an exception of a queue and notifies a debugger that enabled it.
func (k *Kernel) raise(p *Process, mask uint64) {
	if p.debug.enabled && p.debug.mask&mask != 0 {
		k.announce(p)
	}
}

func (k *Kernel) announce(p *Process) { k.system.Notify(p.debug.fd, eventDot) }

// waitingEvents returns the enabled exceptions that were not queried yet.
func (k *Kernel) waitingEvents(p *Process) uint64 {
	all := p.debug.pending
	for _, q := range p.queues {
		all |= q.exceptions
	}
	return all & p.debug.mask
}

func (k *Kernel) queryEvent(c *call, target *Process) {
	d := &target.debug
	clear := c.u64(8)
	for _, q := range slices.Backward(target.queues) {
		if found := q.exceptions & d.mask & classQueue; found != 0 {
			q.exceptions &^= clear
			c.put64(8, found)
			c.put32(16, q.gpu)
			c.put32(20, q.id)
			c.done(0)
			return
		}
	}
	if found := d.pending & d.mask & classProcess; found != 0 {
		d.pending &^= clear
		c.put64(8, found)
		c.put32(16, 0)
		c.put32(20, 0)
		c.done(0)
		return
	}
	c.done(fails(unix.EAGAIN))
}

// ids reads the array of queue ids, all marked invalid.
func (c *call) ids() []uint32 {
	out := make([]uint32, len(c.params)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(c.params[4*i:])&^uint32(abi.KFD_DBG_QUEUE_ERROR_MASK|abi.KFD_DBG_QUEUE_INVALID_MASK) | abi.KFD_DBG_QUEUE_INVALID_MASK
	}
	return out
}

func (c *call) putIDs(ids []uint32) {
	for i, id := range ids {
		binary.LittleEndian.PutUint32(c.params[4*i:], id)
	}
}

func (k *Kernel) suspend(c *call, target *Process) {
	n, pointer := c.u32(24), c.u64(16)
	if k.config.Variant == Upstream && (pointer == 0 && n > 0 || n > maxSuspend) {
		c.done(fails(unix.EINVAL))
		return
	}
	if n > 0 && (c.fault || len(c.params) < 4*int(n)) {
		c.done(fails(unix.EFAULT))
		return
	}
	c.params = c.params[:4*n]
	ids := c.ids()
	var mine []*queue
	byGPU := map[uint32]bool{}
	for i, id := range ids {
		q := target.queue(id &^ abi.KFD_DBG_QUEUE_INVALID_MASK)
		if q == nil || q.destroying || q.exceptions&abi.KFD_EC_MASK_QUEUE_NEW != 0 {
			continue
		}
		if k.faults.UnmapFails {
			ids[i] = q.id | abi.KFD_DBG_QUEUE_ERROR_MASK
			continue
		}
		ids[i] = q.id
		mine = append(mine, q)
		if !q.suspended {
			q.suspended = true
			byGPU[q.gpu] = true
		}
	}
	clear := c.u64(8)
	finish := func() {
		for _, q := range mine {
			q.exceptions &^= clear
			if q.saveAddress != 0 {
				k.system.Write(target.PID, q.saveAddress, q.contextHeader())
			}
		}
		c.putIDs(ids)
		c.done(len(mine))
	}
	k.remapAll(byGPU, mine, func(bool) { finish() })
}

// contextHeader returns the header that the driver writes into a queue's save area.
func (q *queue) contextHeader() []byte {
	b := make([]byte, abi.ContextSaveHeaderBytes)
	put := func(at int, v uint32) { binary.LittleEndian.PutUint32(b[at:], v) }
	put(0, abi.ContextSaveHeaderBytes)
	put(4, 0)
	put(8, q.ctlBytes)
	put(12, 0)
	put(16, q.saveBytes)
	return b
}

func (k *Kernel) resume(c *call, target *Process) {
	n, pointer := c.u32(16), c.u64(8)
	if pointer == 0 { // all queues
		all := slices.Clone(target.queues)
		k.resumeQueues(target, all, func(bool) { c.done(len(all)) })
		return
	}
	if k.config.Variant == Upstream && n > maxSuspend {
		c.done(fails(unix.EINVAL))
		return
	}
	if n > 0 && (c.fault || len(c.params) < 4*int(n)) {
		c.done(fails(unix.EFAULT))
		return
	}
	c.params = c.params[:4*n]
	ids := c.ids()
	var mine []*queue
	for i, id := range ids {
		q := target.queue(id &^ abi.KFD_DBG_QUEUE_INVALID_MASK)
		if q == nil {
			continue
		}
		if k.faults.UnmapFails {
			ids[i] = q.id | abi.KFD_DBG_QUEUE_ERROR_MASK
			continue
		}
		ids[i] = q.id
		mine = append(mine, q)
	}
	k.resumeQueues(target, mine, func(bool) {
		c.putIDs(ids)
		c.done(len(mine))
	})
}

// resumeQueues resumes queues and destroys those with a pending DESTROY_QUEUE.
func (k *Kernel) resumeQueues(target *Process, queues []*queue, done func(bool)) {
	byGPU := map[uint32]bool{}
	for _, q := range queues {
		if q.suspended {
			q.suspended = false
			byGPU[q.gpu] = true
		}
	}
	k.remapAll(byGPU, queues, func(ok bool) {
		waiting := target.waiting
		target.waiting = nil
		for _, f := range waiting {
			f()
		}
		done(ok)
	})
}

// remapAll remaps several devices, each once (with MES: each queue once).
func (k *Kernel) remapAll(gpus map[uint32]bool, queues []*queue, done func(bool)) {
	left, good := 0, true
	type step struct {
		g *gpu
		q *queue
	}
	var steps []step
	for _, g := range k.gpus {
		if !gpus[g.id] {
			continue
		}
		if k.config.Scheduler != MES {
			steps = append(steps, step{g, nil})
			continue
		}
		for _, q := range queues {
			if q.gpu == g.id {
				steps = append(steps, step{g, q})
			}
		}
	}
	if left = len(steps); left == 0 {
		done(true)
		return
	}
	for _, s := range steps {
		k.remap(s.g, s.q, func(ok bool) {
			good = good && ok
			if left--; left == 0 {
				done(good)
			}
		})
	}
}
