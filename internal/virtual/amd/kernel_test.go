// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"math/bits"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
)

func TestDispatch(t *testing.T) {
	b := newBench(t, nil)
	b.expect("unknown number", b.call(0xC0084B7E, nil, nil), unix.ENOTTY)
	b.expect("wrong type", b.call(0x80084601, make([]byte, 8), nil), unix.ENOTTY)
	var got outcome
	b.Ioctl(b.p, 200, 200, 0x80084B01, make([]byte, 8), nil, false, -1, func(r int, _, _ []byte) { got.result = r })
	b.expect("a child's call", got, unix.EBADF)
	old := newBench(t, func(c *Config) { c.Minor = 11 })
	old.expect("debugger of 1.11", old.trap(self, abi.KFD_IOC_DBG_TRAP_ENABLE), unix.ENOTTY)
	if o := old.create(); o.result != 0 {
		t.Error("queue of 1.11", o.result)
	}
}

// TestCreateErrors follows kfd_ioctl_create_queue and set_queue_properties_from_user (kfd_chardev.c), and
// kfd_bind_process_to_device (kfd_process.c): without a VM the process is not found.
func TestCreateErrors(t *testing.T) {
	b := newBench(t, nil)
	b.expect("percentage", b.create(at32(44, 101)), unix.EINVAL)
	b.expect("priority", b.create(at32(48, 16)), unix.EINVAL)
	b.expect("ring", b.create(at32(32, 4097)), unix.EINVAL)
	b.expect("type", b.create(at32(40, 9)), eNOTSUPP)
	b.expect("gpu", b.create(at32(36, 1)), unix.EINVAL)
	b.expect("no vm", b.create(at32(36, gpu0+1)), unix.ESRCH)
	b.expect("bits above the percentage", b.create(at32(44, 100|2<<8)), 0)
	for i := 1; i < 255; i++ {
		b.expect("one of many", b.create(), 0)
	}
	b.expect("too many", b.create(), unix.ENOSPC)
	b.expect("destroy", b.call(0xC0084B03, words(8, 7), nil), 0)
	if o := b.create(); o.result != 0 || u32(o.arg, 52) != 7 {
		t.Errorf("the lowest free number is taken: %d", u32(o.arg, 52))
	}
	b.expect("destroy nothing", b.call(0xC0084B03, words(8, 4000), nil), unix.EINVAL)
}

func TestUpdateErrors(t *testing.T) {
	b := newBench(t, nil)
	b.create()
	b.expect("percentage first", b.update(at32(16, 101), at32(8, 99)), unix.EINVAL)
	b.expect("priority", b.update(at32(20, 16)), unix.EINVAL)
	b.expect("ring", b.update(at32(12, 3000)), unix.EINVAL)
	b.expect("unknown queue", b.update(at32(8, 99)), unix.EFAULT)
	b.expect("wrong address", b.update(at64(0, ringAt+4096)), unix.EFAULT)
	b.expect("wrong size", b.update(at32(12, 8192)), unix.EFAULT)
	b.expect("right", b.update(), 0)
	b.expect("address 0 is no mapping's and turns it off", b.update(at64(0, 0)), 0)
	if b.p.queues[0].active() {
		t.Error("active without a ring")
	}
	b.expect("size 0 becomes 1024", b.update(at64(0, 0), at32(12, 0)), 0)
	if b.p.queues[0].bytes != 1024 {
		t.Error(b.p.queues[0].bytes)
	}
	b.p.queues[0].reset = true
	b.expect("reset queue", b.update(), unix.EACCES)
	b.p.queues[0].reset = false
	b.SetFaults(Faults{UnmapFails: true})
	b.expect("hung firmware", b.update(), unix.ETIME)

	older := newBench(t, func(c *Config) { c.Minor = 15 })
	older.create()
	older.expect("no address check before 1.17", older.update(at64(0, 0x999000)), 0)

	dkms := newBench(t, func(c *Config) { c.Variant = DKMS })
	dkms.create()
	dkms.expect("wrong address", dkms.update(at64(0, 0x999000)), unix.EFAULT)
	if o := dkms.begin(dkms.p, self, arg(24, at64(0, ringAt), at32(12, 4096), at32(16, 100)), 0x40184B07, nil, false, -1); o.answered {
		t.Error("the lock leak of AMD's driver is not reproduced")
	}
}

func TestCUMaskErrors(t *testing.T) {
	b := newBench(t, nil)
	b.create()
	mask := func(b *bench, queue, bits uint32, params []byte) outcome {
		return b.call(0x40104B1A, arg(16, at32(0, queue), at32(4, bits), at64(8, 1)), params)
	}
	b.expect("odd", mask(b, 0, 33, make([]byte, 8)), unix.EINVAL)
	b.expect("none", mask(b, 0, 0, nil), unix.EINVAL)
	b.expect("unreadable", mask(b, 0, 64, nil), unix.EFAULT)
	b.expect("unknown queue", mask(b, 9, 32, words(4, 1)), unix.EFAULT)
	b.expect("cut to 1024", mask(b, 0, 2048, make([]byte, 128)), 0)
	b.expect("mask", mask(b, 0, 32, words(4, 0xf)), 0)
	if b.p.queues[0].units() != 4 {
		t.Error(b.p.queues[0].units())
	}
	pairs := newBench(t, func(c *Config) { c.GFX = 110000 })
	pairs.create()
	pairs.expect("half a pair", mask(pairs, 0, 32, words(4, 1)), unix.EINVAL)
	pairs.expect("a pair", mask(pairs, 0, 32, words(4, 3)), 0)
}

// TestTrapOrder follows kfd_ioctl_set_debug_trap (kfd_chardev.c), also in that only the tracing thread itself may ask
// (ptrace_parent): each check fails while all later ones would too.
func TestTrapOrder(t *testing.T) {
	none := newBench(t, func(c *Config) { c.Scheduler = NoHWS })
	none.expect("1 no firmware scheduling", none.trap(-1, 99), unix.EINVAL)
	for _, variant := range []Variant{Upstream, DKMS} {
		b := newBench(t, func(c *Config) { c.Variant = variant })
		b.m.dead[4711] = true
		b.expect("2 no process", b.trap(4711, 99), unix.ESRCH)
		b.expect("2 no kfd process", b.trap(300, abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES), unix.ESRCH)
		b.Open(400, "other")
		b.expect("3 not its tracer", b.trap(400, 99), unix.EPERM)
		b.expect("3 disable needs none", b.trap(400, abi.KFD_IOC_DBG_TRAP_DISABLE), unix.EINVAL)
		b.m.tracers[400] = self + 1
		b.expect("3 traced by another thread", b.trap(400, abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES), unix.EPERM)
		b.m.tracers[400] = self
		b.expect("4 not enabled", b.trap(400, abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES), unix.EINVAL)
		b.expect("6 bad file", b.trap(400, abi.KFD_IOC_DBG_TRAP_ENABLE), unix.EBADF)
		enable := arg(32, at32(0, 400), at32(24, 16), at64(16, 8))
		if o := b.begin(b.p, self, enable, 0xC0204B26, nil, true, 5); o.result != -int(unix.EFAULT) {
			t.Error("6 bad address:", o.result)
		}
		b.expect("6 the session stays on", b.as(b.p, self, enable, 0xC0204B26, make([]byte, 16), 5), unix.EALREADY)
		b.expect("disable", b.trap(400, abi.KFD_IOC_DBG_TRAP_DISABLE), 0)
		b.expect("6 enable", b.as(b.p, self, enable, 0xC0204B26, make([]byte, 16), 5), 0)
		b.expect("6 twice", b.as(b.p, self, enable, 0xC0204B26, make([]byte, 16), 5), unix.EALREADY)
		for _, op := range []uint32{abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, abi.KFD_IOC_DBG_TRAP_RESUME_QUEUES, abi.KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE, abi.KFD_IOC_DBG_TRAP_SET_NODE_ADDRESS_WATCH, abi.KFD_IOC_DBG_TRAP_SET_FLAGS} {
			b.expect("5 no runtime", b.trap(400, op), unix.EPERM)
		}
		b.expect("unknown op", b.trap(400, 77), unix.EINVAL)
		b.m.tracers[400] = 0
		b.expect("3 no longer its tracer", b.trap(400, abi.KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT), unix.EPERM)
		b.expect("disable", b.trap(400, abi.KFD_IOC_DBG_TRAP_DISABLE), 0)
		if b.m.closed == 0 {
			t.Error("the file is still open")
		}
	}
	created := newBench(t, nil)
	created.m.tracers[500] = self
	created.expect("a tracer makes the kfd process", created.as(created.p, self, arg(32, at32(0, 500)), 0xC0204B26, nil, 5), 0)
	old := newBench(t, func(c *Config) { c.GFX = 80003 })
	old.expect("6 too old a GPU", old.as(old.p, self, arg(32, at32(0, self)), 0xC0204B26, nil, 5), unix.ENODEV)
}

// TestAcceptance is kfdtest's SuspendQueues.
func TestAcceptance(t *testing.T) {
	b := newBench(t, nil)
	b.enableSelf()
	b.create()
	if o := b.suspend(0); o.result != 0 || u32(o.params, 0) != 1<<31 {
		t.Errorf("before NEW is cleared: %d, %#x", o.result, u32(o.params, 0))
	}
	if o := b.snapshot(); o.result != 0 || u32(o.arg, 24) != 1 || u32(o.arg, 28) != 64 || u32(o.params, 0) != abi.KFD_EC_MASK_QUEUE_NEW {
		t.Errorf("snapshot: %+v", o)
	}
	for range 2 { // already suspended is success
		if o := b.suspend(0, 44); o.result != 1 || u32(o.params, 0) != 0 || u32(o.params, 4) != 44|1<<31 {
			t.Errorf("suspend: %+v", o)
		}
	}
	if len(b.m.written[saveAt]) != abi.ContextSaveHeaderBytes {
		t.Error("no header in the save area")
	}
	b.expect("100 percent does not wake it", b.update(), 0)
	if b.p.queues[0].active() {
		t.Error("a suspended queue runs")
	}
	destroying := b.begin(b.p, self, words(8, 0), 0xC0084B03, nil, false, -1)
	if destroying.answered {
		t.Error("a suspended queue was destroyed")
	}
	if o := b.resume(0); o.result != 1 {
		t.Errorf("resume: %+v", o)
	}
	b.pass(time.Second)
	if !destroying.answered || destroying.result != 0 || len(b.p.queues) != 0 {
		t.Error("the queue was not destroyed after the resume")
	}
}

func TestSuspendArguments(t *testing.T) {
	for variant, want := range map[Variant]unix.Errno{Upstream: unix.EINVAL, DKMS: unix.EFAULT} {
		b := newBench(t, func(c *Config) { c.Variant = variant })
		b.enableSelf()
		b.create()
		b.expect("null array", b.trap(self, abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, at32(24, 1)), want)
		b.expect("too many", b.trap(self, abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, at64(16, 1), at32(24, 1025)), want)
		b.snapshot()
		b.suspend(0)
		if o := b.trap(self, abi.KFD_IOC_DBG_TRAP_RESUME_QUEUES); o.result != 1 || b.p.queues[0].suspended {
			t.Error("a null array resumes everything", o.result)
		}
		if o := b.resume(0); o.result != 1 {
			t.Error("a running queue counts as resumed")
		}
		b.expect("entry size 0", b.trap(self, abi.KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT, at64(16, 1), at32(24, 1)), unix.EINVAL)
		b.SetFaults(Faults{UnmapFails: true})
		if o := b.suspend(0); o.result != 0 || u32(o.params, 0) != 1<<30 {
			t.Errorf("hung firmware: %+v", o)
		}
	}
}

func TestRuntimeHandshake(t *testing.T) {
	b := newBench(t, nil)
	b.create()
	b.expect("queues exist", b.call(0xC0104B25, arg(16, at32(8, 1)), nil), unix.EEXIST)
	b.call(0xC0084B03, words(8, 0), nil)
	b.expect("enable", b.call(0xC0104B25, arg(16, at32(8, 1)), nil), 0)
	b.expect("twice", b.call(0xC0104B25, arg(16, at32(8, 1)), nil), unix.EBUSY)
	b.expect("debug", b.as(b.p, self, arg(32, at32(0, self), at64(8, abi.KFD_EC_MASK_PROCESS_RUNTIME)), 0xC0204B26, nil, 5), 0)
	off := b.begin(b.p, self, arg(16), 0xC0104B25, nil, false, -1)
	if off.answered || b.m.dots != 1 {
		t.Fatal("RUNTIME_ENABLE did not wait for the debugger")
	}
	if o := b.trap(self, abi.KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT, at64(8, abi.KFD_EC_MASK_PROCESS_RUNTIME)); o.result != 0 || binary.LittleEndian.Uint64(o.arg[8:]) != abi.KFD_EC_MASK_PROCESS_RUNTIME {
		t.Errorf("event: %+v", o)
	}
	b.expect("no more", b.trap(self, abi.KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT), unix.EAGAIN)
	b.expect("send", b.trap(self, abi.KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT, at64(8, abi.KFD_EC_MASK_PROCESS_RUNTIME)), 0)
	if !off.answered {
		t.Error("RUNTIME_ENABLE still waits")
	}
}

func TestDebuggerDies(t *testing.T) {
	b := newBench(t, nil)
	target := b.Open(400, "target")
	b.bind(target)
	b.as(target, 400, arg(16, at32(8, 1)), 0xC0104B25, nil, -1)
	b.as(target, 400, b.queueArg(), 0xC0604B02, nil, -1)
	b.m.tracers[400] = self
	b.expect("enable", b.as(b.p, self, arg(32, at32(0, 400)), 0xC0204B26, nil, 5), 0)
	b.call(0xC0204B26, arg(32, at32(0, 400), at32(4, abi.KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT), at64(8, abi.KFD_EC_MASK_QUEUE_NEW), at32(28, 64)), nil)
	// One entry must fit for NEW to be cleared.
	b.call(0xC0204B26, arg(32, at32(0, 400), at32(4, abi.KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT), at64(8, abi.KFD_EC_MASK_QUEUE_NEW), at64(16, 1), at32(24, 1), at32(28, 64)), make([]byte, 64))
	o := b.call(0xC0204B26, arg(32, at32(0, 400), at32(4, abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES), at64(16, 1), at32(24, 1)), words(4, 0))
	if o.result != 1 || !target.queues[0].suspended {
		t.Fatal(o.result)
	}
	b.Exit(self)
	if target.queues[0].suspended || target.debug.enabled {
		t.Error("the target stays suspended")
	}
}

// TestPauseStopsWork checks that no scheduler runs a paused queue or loses its work.
func TestPauseStopsWork(t *testing.T) {
	for _, s := range []Scheduler{HWS, MES} {
		b := newBench(t, func(c *Config) { c.Scheduler = s })
		b.create()
		b.call(0xC0184BE0, arg(24, at32(4, 1), at64(8, uint64(10*time.Second)), at32(16, 5)), nil)
		b.expect("pause", b.update(at32(16, 0)), 0)
		b.pass(time.Minute)
		if o := b.call(0xC0204BE1, arg(32), nil); u32(o.arg, 16) != 0 {
			t.Error(s, "a paused queue finished")
		}
		b.expect("continue", b.update(), 0)
		b.pass(time.Minute)
		o := b.call(0xC0204BE1, arg(32), nil)
		want := uint64(0)
		for i := range uint32(10 * time.Second / (10 * time.Microsecond)) {
			want = Fold(want, 5, i)
		}
		if u32(o.arg, 16) != 1 || binary.LittleEndian.Uint64(o.arg[24:]) != want {
			t.Errorf("%s: %+v", s, o)
		}
	}
}

// TestRemapTouchesEverybody checks that a pause interrupts other queues with HWS, but not with MES.
func TestRemapTouchesEverybody(t *testing.T) {
	for s, want := range map[Scheduler]bool{HWS: true, MES: false} {
		b := newBench(t, func(c *Config) { c.Scheduler = s })
		b.create()
		neighbour := b.Open(400, "neighbour")
		b.bind(neighbour)
		b.as(neighbour, 400, b.queueArg(), 0xC0604B02, nil, -1)
		b.as(neighbour, 400, arg(24, at32(4, 1), at64(8, uint64(time.Minute))), 0xC0184BE0, nil, -1)
		before := neighbour.account.Preemptions
		b.update(at32(16, 0))
		if got := neighbour.account.Preemptions > before; got != want {
			t.Errorf("%s: the neighbour was interrupted: %t", s, got)
		}
	}
}

func FuzzIoctl(f *testing.F) {
	f.Add(uint32(0xC0204B26), arg(32, at32(0, self), at32(4, abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES), at64(16, 1), at32(24, 1)), words(4, 0), false)
	f.Add(uint32(0xC0604B02), arg(96, at64(0, ringAt), at32(32, 4096), at32(36, gpu0), at32(44, 100)), []byte{}, false)
	f.Add(uint32(0x40184B07), arg(24, at64(0, ringAt), at32(12, 4096)), []byte{}, true)
	f.Fuzz(func(t *testing.T, request uint32, a, params []byte, fault bool) {
		if len(a) > format.MaxArg || len(params) > format.MaxParams {
			return
		}
		b := newBench(t, nil)
		b.enableSelf()
		b.create()
		o := b.begin(b.p, self, a, request&0xffff00ff|'K'<<8, params, fault, -1)
		if o.answered && (len(o.arg) != len(a) || o.result < -4095) {
			t.Errorf("%#x: %d, %d of %d bytes", request, o.result, len(o.arg), len(a))
		}
	})
}

func FuzzPacket(f *testing.F) {
	f.Add(make([]byte, format.Header))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := format.Decode(b); err == nil && format.Header+len(p.Arg)+len(p.Params) != len(b) {
			t.Error("bytes appeared")
		}
	})
}

// units returns the number of compute units a queue may use; 0 for all.
func (q *queue) units() (n int) {
	for _, b := range q.cuMask {
		n += bits.OnesCount8(b)
	}
	return n
}

// VRAM ends for all processes together; system memory does not count, and freed memory counts no more.
func TestMemoryEnds(t *testing.T) {
	b := newBench(t, nil)
	available := func() uint64 {
		r := b.as(b.p, b.p.PID, arg(16, at32(8, gpu0)), 0xC0104B23, nil, -1)
		return binary.LittleEndian.Uint64(r.arg)
	}
	alloc := func(bytes uint64, flags uint32) (int, uint64) {
		r := b.as(b.p, b.p.PID, arg(40, at64(0, 1<<40), at64(8, bytes), at32(32, gpu0), at32(36, flags)), 0xC0284B16, nil, -1)
		return r.result, binary.LittleEndian.Uint64(r.arg[16:])
	}
	all := b.config.Memory
	if available() != all {
		t.Fatalf("%d of %d available", available(), all)
	}
	result, handle := alloc(all-4096, allocVRAM)
	if result != 0 || available() != 4096 {
		t.Fatalf("%d, %d available", result, available())
	}
	if result, _ := alloc(8192, allocVRAM); result != -int(unix.ENOMEM) || available() != 4096 {
		t.Errorf("beyond the end: %d, %d available", result, available())
	}
	if result, _ := alloc(8192, 2); result != 0 || available() != 4096 {
		t.Errorf("system memory: %d, %d available", result, available())
	}
	if r := b.as(b.p, b.p.PID, arg(8, at64(0, handle)), 0x40084B17, nil, -1); r.result != 0 || available() != all {
		t.Errorf("free: %d, %d available", r.result, available())
	}
	b.SetFaults(Faults{NoMemory: true})
	if result, _ := alloc(4096, allocVRAM); result != -int(unix.ENOMEM) {
		t.Errorf("with the fault: %d", result)
	}
}
