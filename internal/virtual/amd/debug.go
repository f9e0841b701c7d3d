// SPDX-License-Identifier: Apache-2.0

package vamd

import (
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
	flags    uint32
	acks     int     // a semaphore: SEND_RUNTIME_EVENT calls not yet used up
	blocked  []*call // RUNTIME_ENABLE calls that wait for the debugger
}

// debugTrap checks in the order of kfd_ioctl_set_debug_trap (kfd_chardev.c) and executes one
// operation. Only the tracing thread or the process itself has permission, except to disable.
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
	if target != c.process && !traces && op != abi.KFD_IOC_DBG_TRAP_DISABLE {
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
		k.setExceptions(c, target)
	case abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES:
		k.suspend(c, target)
	case abi.KFD_IOC_DBG_TRAP_RESUME_QUEUES:
		k.resume(c, target)
	case abi.KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT:
		k.queryEvent(c, target)
	case abi.KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO:
		k.exceptionInfo(c, target)
	case abi.KFD_IOC_DBG_TRAP_SET_FLAGS:
		k.setFlags(c, target)
	case abi.KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT:
		k.snapshot(c, target)
	case abi.KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT:
		k.deviceSnapshot(c)
	default: // unknown, or for waves and watch points, which are not modeled
		c.done(fails(unix.EINVAL))
	}
}

// enable follows kfd_dbg_trap_enable (kfd_debug.c). A bad address for the runtime's state fails after
// the session has begun, and leaves it on.
func (k *Kernel) enable(c *call, target *Process) {
	d := &target.debug
	gws := slices.ContainsFunc(target.queues, func(q *queue) bool { return q.gws })
	failure := unix.Errno(0)
	switch {
	case d.enabled:
		failure = unix.EALREADY
	case k.config.GFX < 90000:
		failure = unix.ENODEV
	case gws && !k.config.gwsUnderDebugger():
		failure = unix.EBUSY
	case c.fd < 0:
		failure = unix.EBADF
	}
	if failure != 0 {
		c.done(fails(failure))
		return
	}
	d.enabled, d.fd, d.debugger = true, c.fd, nil
	c.fd = -1
	if target != c.process {
		d.debugger = c.process
	}
	if c.fault && c.u32(24) > 0 {
		c.put32(24, abi.RuntimeInfoBytes)
		k.resumeQueues(target, target.queues, func(int, map[uint32]bool) { c.done(fails(unix.EFAULT)) })
		return
	}
	d.mask = c.u64(8)
	copy(c.params, d.runtimeInfo())
	c.put32(24, abi.RuntimeInfoBytes)
	c.done(0)
}

// disable ends a debug session: it resumes all queues, forgets all exceptions
// (kfd_dbg_trap_disable, kfd_debug.c) and unblocks waiting calls.
func (k *Kernel) disable(target *Process) {
	d := &target.debug
	if !d.enabled {
		return
	}
	k.resumeQueues(target, target.queues, func(int, map[uint32]bool) {})
	k.system.CloseFD(d.fd)
	for _, q := range target.queues {
		q.exceptions = 0
	}
	blocked := d.blocked
	*d = debugState{fd: -1, mask: d.mask, runtime: d.runtime, rDebug: d.rDebug, ttmp: d.ttmp, acks: d.acks}
	for _, c := range blocked {
		c.done(0)
	}
}

// sendRuntimeEvent follows kfd_dbg_send_exception_to_runtime (kfd_debug.c): it ends one wait, also
// one that begins later, and leaves the pending exception.
func (k *Kernel) sendRuntimeEvent(c *call, target *Process) {
	d := &target.debug
	if c.u64(8)&abi.KFD_EC_MASK_PROCESS_RUNTIME != 0 {
		if len(d.blocked) > 0 {
			waiter := d.blocked[0]
			d.blocked = d.blocked[1:]
			waiter.done(0)
		} else {
			d.acks++
		}
	}
	c.done(0)
}

// runtimeEnable follows runtime_enable and runtime_disable (kfd_chardev.c).
func (k *Kernel) runtimeEnable(c *call) {
	p := c.process
	d := &p.debug
	if c.u32(8)&abi.KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK != 0 {
		switch {
		case d.runtime != abi.DEBUG_RUNTIME_STATE_DISABLED:
			c.done(fails(unix.EBUSY))
			return
		case len(p.queues) > 0:
			c.done(fails(unix.EEXIST))
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
	k.raise(p, abi.KFD_EC_MASK_PROCESS_RUNTIME)
	if d.acks > 0 {
		d.acks--
		c.done(0)
		return
	}
	d.blocked = append(d.blocked, c)
}
