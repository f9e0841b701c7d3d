// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
)

// raise sets an exception of a queue and notifies a debugger that enabled it.
func (k *Kernel) raise(p *Process, mask uint64) {
	if p.debug.enabled && p.debug.mask&mask != 0 {
		k.announce(p)
	}
}

func (k *Kernel) announce(p *Process) { k.system.Notify(p.debug.fd, eventDot) }

// setExceptions follows kfd_dbg_set_enabled_debug_exception_mask (kfd_debug.c).
func (k *Kernel) setExceptions(c *call, target *Process) {
	all := target.debug.pending
	for _, q := range target.queues {
		all |= q.exceptions
	}
	target.debug.mask = c.u64(8)
	if all&target.debug.mask != 0 {
		k.announce(target)
	}
	c.done(0)
}

// queryEvent follows kfd_dbg_ev_query_debug_event (kfd_debug.c): an enabled exception selects the
// queue or process, and the result has all its exceptions.
func (k *Kernel) queryEvent(c *call, target *Process) {
	d := &target.debug
	clear := c.u64(8)
	status, gpu, id := uint64(0), uint32(0), uint32(0)
	for _, q := range slices.Backward(target.queues) {
		if q.exceptions&d.mask != 0 {
			status, gpu, id = q.exceptions, q.gpu, q.id
			q.exceptions &^= clear
			break
		}
	}
	if status == 0 && d.pending&d.mask != 0 {
		status = d.pending
		d.pending &^= clear
	}
	c.put64(8, status)
	c.put32(16, gpu)
	c.put32(20, id)
	if status == 0 {
		c.done(fails(unix.EAGAIN))
		return
	}
	c.done(0)
}

// exceptionInfo follows kfd_dbg_trap_query_exception_info (kfd_debug.c). No device of this model
// raises an exception.
func (k *Kernel) exceptionInfo(c *call, target *Process) {
	source, code, clear := c.u32(20), c.u32(24), c.u32(28) != 0
	mask := uint64(0)
	if code > 0 && code <= 64 {
		mask = 1 << (code - 1)
	}
	d := &target.debug
	var status *uint64
	switch {
	case c.u64(8) == 0:
	case mask&classQueue != 0:
		if q := target.queue(source); q != nil {
			status = &q.exceptions
		}
	case mask&classDevice != 0:
		if k.gpu(source) != nil {
			status = new(uint64)
		}
	case mask&classProcess != 0:
		status = &d.pending
	}
	if status == nil {
		c.done(fails(unix.EINVAL))
		return
	}
	if *status&mask == 0 {
		c.done(fails(unix.ENODATA))
		return
	}
	size := uint32(0)
	if mask == abi.KFD_EC_MASK_PROCESS_RUNTIME {
		if c.fault && c.u32(16) > 0 {
			c.done(fails(unix.EFAULT))
			return
		}
		copy(c.params, d.runtimeInfo())
		size = abi.RuntimeInfoBytes
	}
	c.put32(16, size)
	if clear {
		*status &^= mask
	}
	c.done(0)
}

func (d *debugState) runtimeInfo() []byte {
	info, _ := binary.Append(nil, binary.LittleEndian, &abi.RuntimeInfo{RDebug: d.rDebug, RuntimeState: d.runtime, TTMPSetup: d.ttmp})
	return info
}

// setFlags follows kfd_dbg_trap_set_flags (kfd_debug.c). It replies with the previous flags.
func (k *Kernel) setFlags(c *call, target *Process) {
	d := &target.debug
	wanted, before := c.u32(8), d.flags
	c.put32(8, before)
	if !k.config.debugPerProcess() {
		if wanted&abi.KFD_DBG_TRAP_FLAG_SINGLE_MEM_OP != 0 {
			c.done(fails(unix.EACCES))
			return
		}
		d.flags = 0
		c.done(0)
		return
	}
	d.flags = wanted & abi.KFD_DBG_TRAP_FLAG_SINGLE_MEM_OP
	if k.config.Scheduler == MES {
		c.done(0)
		return
	}
	k.remapAll(k.gpus, nil, func(failed map[uint32]bool) {
		if len(failed) > 0 {
			d.flags = before
			c.done(fails(unix.ETIME))
			return
		}
		c.done(0)
	})
}

// debugPerProcess follows kfd_dbg_is_per_vmid_supported (kfd_debug.h).
func (c Config) debugPerProcess() bool {
	return c.GFX == 90010 || c.GFX/100 == 904 || c.GFX/100 == 905 || c.GFX >= 110000
}

// gwsUnderDebugger follows kfd_dbg_has_gws_support (kfd_debug.h), with current firmware.
func (c Config) gwsUnderDebugger() bool { return c.GFX/10000 != 11 }
