// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
)

// Each test names the function of the driver (drivers/gpu/drm/amd/amdkfd) that it follows.

// TestRuntimeEnableOrder follows runtime_enable (kfd_chardev.c).
func TestRuntimeEnableOrder(t *testing.T) {
	b := newBench(t, nil)
	b.expect("enable", b.call(0xC0104B25, arg(16, at32(8, 1)), nil), 0)
	b.create()
	b.expect("again, with a queue", b.call(0xC0104B25, arg(16, at32(8, 1)), nil), unix.EBUSY)
}

// TestEnableOrder follows kfd_dbg_trap_enable and kfd_dbg_has_gws_support (kfd_debug.c, .h) of the mainline driver, which
// looks at the GPUs before it takes the file. A list of differences that we were given has it the other way round.
func TestEnableOrder(t *testing.T) {
	old := newBench(t, func(c *Config) { c.GFX = 80003 })
	old.expect("an old GPU comes before a bad file", old.trap(self, abi.KFD_IOC_DBG_TRAP_ENABLE), unix.ENODEV)
	for gfx, want := range map[uint32]unix.Errno{90402: 0, 110000: unix.EBUSY, 120000: 0} {
		b := newBench(t, func(c *Config) { c.GFX = gfx })
		b.create()
		b.create()
		b.expect("gws", b.call(0xC0104B1E, words(16, 0, 1), nil), 0)
		b.expect("a second queue's gws", b.call(0xC0104B1E, words(16, 1, 1), nil), unix.EBUSY)
		b.expect("enable with gws", b.as(b.p, self, arg(32, at32(0, self)), 0xC0204B26, nil, 5), want)
		b.expect("drop gws", b.call(0xC0104B1E, words(16, 0, 0), nil), 0)
		b.expect("drop it again", b.call(0xC0104B1E, words(16, 0, 0), nil), unix.EINVAL)
		if want == 0 {
			continue
		}
		b.expect("enable", b.as(b.p, self, arg(32, at32(0, self)), 0xC0204B26, nil, 5), 0)
		b.expect("gws under a debugger", b.call(0xC0104B1E, words(16, 0, 1), nil), unix.EBUSY)
	}
}

// TestEnableFault follows kfd_dbg_trap_enable (kfd_debug.c): the session stays on, without the mask.
func TestEnableFault(t *testing.T) {
	b := newBench(t, nil)
	b.expect("runtime", b.call(0xC0104B25, arg(16, at32(8, 1)), nil), 0)
	enable := arg(32, at32(0, self), at64(8, abi.KFD_EC_MASK_QUEUE_NEW), at64(16, 8), at32(24, 16))
	if o := b.begin(b.p, self, enable, 0xC0204B26, nil, true, 5); o.result != -int(unix.EFAULT) {
		t.Error(o.result)
	}
	b.expect("again", b.as(b.p, self, enable, 0xC0204B26, make([]byte, 16), 5), unix.EALREADY)
	b.create()
	if b.m.dots != 0 {
		t.Error("an exception was enabled")
	}
}

// TestExceptionInfo follows kfd_dbg_trap_query_exception_info (kfd_debug.c).
func TestExceptionInfo(t *testing.T) {
	const queueNew, memoryViolation, runtime = 31, 35, 48
	b := newBench(t, nil)
	b.expect("debug", b.as(b.p, self, arg(32, at32(0, self)), 0xC0204B26, nil, 5), 0)
	info := func(code, source, clear uint32, room int) outcome {
		t.Helper()
		a := arg(32, at32(0, self), at32(4, abi.KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO), at64(8, 1), at32(16, uint32(room)), at32(20, source), at32(24, code), at32(28, clear))
		return b.call(0xC0204B26, a, make([]byte, room))
	}
	b.expect("nothing yet", info(runtime, 0, 0, 16), unix.ENODATA)
	waiting := b.begin(b.p, self, arg(16, at64(0, 0x1234), at32(8, 1)), 0xC0104B25, nil, false, -1)
	o := info(runtime, 0, 1, 16)
	if o.result != 0 || u32(o.arg, 16) != 16 || binary.LittleEndian.Uint64(o.params) != 0x1234 || u32(o.params, 8) != abi.DEBUG_RUNTIME_STATE_ENABLED {
		t.Errorf("runtime: %+v", o)
	}
	b.expect("cleared", info(runtime, 0, 0, 16), unix.ENODATA)
	b.trap(self, abi.KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT, at64(8, abi.KFD_EC_MASK_PROCESS_RUNTIME))
	if !waiting.answered {
		t.Error("the runtime still waits")
	}
	b.create()
	b.expect("queue", info(queueNew, 0, 1, 0), 0)
	b.expect("queue, cleared", info(queueNew, 0, 0, 0), unix.ENODATA)
	b.expect("no such queue", info(queueNew, 7, 0, 0), unix.EINVAL)
	b.expect("device", info(memoryViolation, gpu0, 0, 0), unix.ENODATA)
	b.expect("no such device", info(memoryViolation, 1, 0, 0), unix.EINVAL)
	for _, code := range []uint32{0, 10, 63, 64, 65, 1 << 31} {
		b.expect("no such exception", info(code, 0, 0, 0), unix.EINVAL)
	}
	b.expect("no address", b.trap(self, abi.KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO, at32(24, runtime)), unix.EINVAL)
}

// TestSetFlags follows kfd_dbg_trap_set_flags (kfd_debug.c).
func TestSetFlags(t *testing.T) {
	for gfx, want := range map[uint32]unix.Errno{90402: 0, 90010: 0, 100300: unix.EACCES, 110000: 0} {
		b := newBench(t, func(c *Config) { c.GFX = gfx })
		b.enableSelf()
		b.expect("no flags", b.trap(self, abi.KFD_IOC_DBG_TRAP_SET_FLAGS), 0)
		b.expect("single", b.trap(self, abi.KFD_IOC_DBG_TRAP_SET_FLAGS, at32(8, 3)), want)
		if o := b.trap(self, abi.KFD_IOC_DBG_TRAP_SET_FLAGS); want == 0 && (o.result != 0 || u32(o.arg, 8) != 1) {
			t.Errorf("gfx %d: previous flags %d, %d", gfx, u32(o.arg, 8), o.result)
		}
	}
	b := newBench(t, nil)
	b.enableSelf()
	b.SetFaults(Faults{UnmapFails: true})
	b.expect("hung firmware", b.trap(self, abi.KFD_IOC_DBG_TRAP_SET_FLAGS, at32(8, 1)), unix.ETIME)
	b.SetFaults(Faults{})
	if o := b.trap(self, abi.KFD_IOC_DBG_TRAP_SET_FLAGS); u32(o.arg, 8) != 0 {
		t.Error("the flags were kept")
	}
}

// TestDeviceSnapshotSize follows kfd_dbg_trap_device_snapshot (kfd_debug.c).
func TestDeviceSnapshotSize(t *testing.T) {
	b := newBench(t, nil)
	b.enableSelf()
	o := b.trap(self, abi.KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT, at64(16, 1), at32(24, 2))
	if o.result != 0 || u32(o.arg, 24) != 2 || u32(o.arg, 28) != 0 {
		t.Errorf("entry size 0: %+v", o)
	}
	b.expect("no buffer", b.trap(self, abi.KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT, at32(24, 2), at32(28, 120)), unix.EINVAL)
}

// TestIdleChangesRemap follows suspend_queues and resume_queues (kfd_device_queue_manager.c): with
// HWS a change of nothing interrupts the GPU, with MES it costs nothing.
func TestIdleChangesRemap(t *testing.T) {
	for scheduler, want := range map[Scheduler]uint64{HWS: 1, MES: 0} {
		b := newBench(t, func(c *Config) { c.Scheduler = scheduler })
		b.enableSelf()
		b.create()
		b.snapshot()
		for what, change := range map[string]func(...uint32) outcome{"suspend": b.suspend, "resume": b.resume} {
			change(0)
			before := b.remaps
			if o := change(0); o.result != 1 {
				t.Errorf("%s: %s: %+v", scheduler, what, o)
			}
			if got := b.remaps - before; got != want {
				t.Errorf("%s: %s of an unchanged queue: %d remaps, want %d", scheduler, what, got, want)
			}
		}
		before := b.remaps
		b.suspend(9)
		b.resume(9)
		if b.remaps != before {
			t.Error(scheduler, "an unknown queue caused a remap")
		}
	}
}

// TestRepeatedID follows q_array_get_index (kfd_device_queue_manager.c).
func TestRepeatedID(t *testing.T) {
	b := newBench(t, nil)
	b.enableSelf()
	b.create()
	b.snapshot()
	if o := b.suspend(0, 0); o.result != 1 || u32(o.params, 0) != 0 || u32(o.params, 4) != 1<<31 {
		t.Errorf("%+v", o)
	}
	if o := b.resume(1 << 30); o.result != 0 || u32(o.params, 0) != 3<<30 {
		t.Errorf("an id with the error bit: %+v", o)
	}
}

// TestFailedUnmap follows suspend_single_queue and suspend_queues (kfd_device_queue_manager.c): the
// queue stays marked as suspended, and stops at the next remap.
func TestFailedUnmap(t *testing.T) {
	for scheduler, bits := range map[Scheduler]uint32{HWS: 1 << 30, MES: 3 << 30} {
		b := newBench(t, func(c *Config) { c.Scheduler = scheduler })
		b.enableSelf()
		b.create()
		b.snapshot()
		b.SetFaults(Faults{UnmapFails: true})
		if o := b.suspend(0); o.result != 0 || u32(o.params, 0) != bits {
			t.Errorf("%s: %d, %#x", scheduler, o.result, u32(o.params, 0))
		}
		if !b.p.queues[0].suspended {
			t.Error(scheduler, "no longer marked as suspended")
		}
		if len(b.m.written) != 0 {
			t.Error(scheduler, "a header was written")
		}
		b.SetFaults(Faults{})
		b.update()
		if b.p.queues[0].mapped {
			t.Error(scheduler, "runs after the next remap")
		}
		if o := b.suspend(0); o.result != 1 {
			t.Error(scheduler, "a second suspend:", o.result)
		}
	}
}

// TestSuspendDuringDestruction follows suspend_single_queue (kfd_device_queue_manager.c): suspended
// comes before being destroyed.
func TestSuspendDuringDestruction(t *testing.T) {
	b := newBench(t, nil)
	b.enableSelf()
	b.create()
	b.snapshot()
	b.suspend(0)
	destroying := b.begin(b.p, self, words(8, 0), 0xC0084B03, nil, false, -1)
	if o := b.suspend(0); o.result != 1 || u32(o.params, 0) != 0 || destroying.answered {
		t.Errorf("%+v", o)
	}
	b.resume(0)
	b.pass(time.Second)
	if !destroying.answered {
		t.Error("still there after the resume")
	}
}

// TestSaveHeader follows copy_context_work_handler (kfd_device_queue_manager.c) and get_wave_state
// (kfd_mqd_manager_v9.c): 16 bytes per die, for every compute queue of the process.
func TestSaveHeader(t *testing.T) {
	b := newBench(t, nil)
	b.enableSelf()
	const second = 0x10000000
	b.buffer(b.p, second, b.saveTotal())
	b.create()
	b.create(at64(72, second))
	b.create(at32(40, abi.KFD_IOC_QUEUE_TYPE_SDMA), at64(72, 0x5000))
	b.snapshot()
	b.suspend(0)
	areas := b.config.saveAreas()
	want := words(16, areas.controlStack, 0, areas.controlStack)
	if len(b.m.written) != 2*int(b.config.xccs()) {
		t.Errorf("%d headers", len(b.m.written))
	}
	for _, at := range []uint64{saveAt, second} {
		for die := range uint64(b.config.xccs()) {
			if got := b.m.written[at+die*uint64(areas.save)]; !slices.Equal(got, want) {
				t.Errorf("%#x, die %d: %x, want %x", at, die, got, want)
			}
		}
	}
}

// TestEarlyAnswer follows kfd_dbg_send_exception_to_runtime and runtime_enable (kfd_debug.c,
// kfd_chardev.c): a semaphore counts answers, and the exception stays pending.
func TestEarlyAnswer(t *testing.T) {
	b := newBench(t, nil)
	b.expect("debug", b.as(b.p, self, arg(32, at32(0, self), at64(8, abi.KFD_EC_MASK_PROCESS_RUNTIME)), 0xC0204B26, nil, 5), 0)
	b.expect("early", b.trap(self, abi.KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT, at64(8, abi.KFD_EC_MASK_PROCESS_RUNTIME)), 0)
	b.expect("runtime", b.call(0xC0104B25, arg(16, at32(8, 1)), nil), 0)
	off := b.begin(b.p, self, arg(16), 0xC0104B25, nil, false, -1)
	if off.answered {
		t.Error("one answer ended two waits")
	}
	b.expect("answer", b.trap(self, abi.KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT, at64(8, abi.KFD_EC_MASK_PROCESS_RUNTIME)), 0)
	if !off.answered {
		t.Error("still waits")
	}
	b.expect("the exception is still pending", b.trap(self, abi.KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT), 0)
}

// TestQueryWholeStatus follows kfd_dbg_ev_query_debug_event (kfd_debug.c).
func TestQueryWholeStatus(t *testing.T) {
	const preemption = 1 << 29
	b := newBench(t, nil)
	b.expect("debug", b.as(b.p, self, arg(32, at32(0, self), at64(8, preemption)), 0xC0204B26, nil, 5), 0)
	b.create()
	b.expect("not enabled", b.trap(self, abi.KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT), unix.EAGAIN)
	b.p.queues[0].exceptions |= preemption
	o := b.trap(self, abi.KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT, at64(8, preemption))
	if got := binary.LittleEndian.Uint64(o.arg[8:]); o.result != 0 || got != preemption|abi.KFD_EC_MASK_QUEUE_NEW || u32(o.arg, 16) != gpu0 {
		t.Errorf("%d, %#x", o.result, got)
	}
	if b.p.queues[0].exceptions != abi.KFD_EC_MASK_QUEUE_NEW {
		t.Errorf("left: %#x", b.p.queues[0].exceptions)
	}
}

// TestDisableForgets follows kfd_dbg_clean_exception_status (kfd_debug.c): after a session no queue
// is new.
func TestDisableForgets(t *testing.T) {
	b := newBench(t, nil)
	b.enableSelf()
	b.create()
	b.expect("disable", b.trap(self, abi.KFD_IOC_DBG_TRAP_DISABLE), 0)
	b.expect("enable", b.as(b.p, self, arg(32, at32(0, self)), 0xC0204B26, nil, 5), 0)
	if o := b.suspend(0); o.result != 1 {
		t.Error(o.result)
	}
}
