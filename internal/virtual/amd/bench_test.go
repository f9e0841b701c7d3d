// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
	"xsched/internal/model"
)

// machine is a system in plain memory, with a clock that tests move.
type machine struct {
	now     model.Time
	tracers map[int]int
	dead    map[int]bool
	dots    int
	closed  int
	written map[uint64][]byte
}

func (m *machine) Now() model.Time                  { return m.now }
func (m *machine) Tracer(pid int) int               { return m.tracers[pid] }
func (m *machine) Exists(pid int) bool              { return !m.dead[pid] }
func (m *machine) Write(_ int, at uint64, b []byte) { m.written[at] = b }
func (m *machine) Notify(int, byte)                 { m.dots++ }
func (m *machine) CloseFD(int)                      { m.closed++ }
func (m *machine) Changed(*Process)                 {}
func (m *machine) Timer(model.Time)                 {}

// bench is a kernel with one process that has a VM on the first GPU.
type bench struct {
	t *testing.T
	*Kernel
	m *machine
	p *Process
}

const (
	self      = 100
	gpu0      = 63420
	ringAt    = 0x10000
	pointerAt = 0x20000
	saveAt    = 0x100000
)

func newBench(t *testing.T, change func(*Config)) *bench {
	config := DefaultConfig()
	if change != nil {
		change(&config)
	}
	m := &machine{now: 1, tracers: map[int]int{}, dead: map[int]bool{}, written: map[uint64][]byte{}}
	b := &bench{t: t, Kernel: NewKernel(config, m), m: m}
	b.p = b.Open(self, "self")
	b.bind(b.p)
	return b
}

func (b *bench) bind(p *Process) {
	if r := b.as(p, p.PID, words(8, 3, gpu0), 0x40084B15, nil, 3); r.result != 0 {
		b.t.Fatal("acquire vm:", r.result)
	}
	b.buffer(p, ringAt, 4096)
	b.buffer(p, pointerAt, 4096)
	b.buffer(p, saveAt, b.saveTotal())
}

// buffer allocates memory and maps it to the first GPU.
func (b *bench) buffer(p *Process, at, bytes uint64) {
	r := b.as(p, p.PID, arg(40, at64(0, at), at64(8, bytes), at32(32, gpu0), at32(36, 2)), 0xC0284B16, nil, -1)
	handle := binary.LittleEndian.Uint64(r.arg[16:])
	if r := b.as(p, p.PID, arg(24, at64(0, handle), at64(8, 1), at32(16, 1)), 0xC0184B18, words(4, gpu0), -1); r.result != 0 {
		b.t.Fatal("map:", r.result)
	}
}

func (b *bench) saveTotal() uint64 {
	areas := b.config.saveAreas()
	return uint64(pages((areas.save+areas.debug)*b.config.xccs())) * pageBytes
}

// queueArg is the argument of a valid CREATE_QUEUE.
func (b *bench) queueArg(puts ...put) []byte {
	areas := b.config.saveAreas()
	return arg(96, append([]put{
		at64(0, ringAt), at64(8, pointerAt), at64(16, pointerAt+8), at32(32, 4096), at32(36, gpu0), at32(40, abi.KFD_IOC_QUEUE_TYPE_COMPUTE_AQL),
		at32(44, 100), at32(48, 7), at64(72, saveAt), at32(80, areas.save), at32(84, areas.controlStack),
	}, puts...)...)
}

type put struct {
	at, size int
	value    uint64
}

func at32(at int, v uint32) put { return put{at, 4, uint64(v)} }
func at64(at int, v uint64) put { return put{at, 8, v} }

func arg(size int, puts ...put) []byte {
	b := make([]byte, size)
	for _, p := range puts {
		if p.size == 4 {
			binary.LittleEndian.PutUint32(b[p.at:], uint32(p.value))
		} else {
			binary.LittleEndian.PutUint64(b[p.at:], p.value)
		}
	}
	return b
}

func words(size int, list ...uint32) []byte {
	b := make([]byte, size)
	for i, v := range list {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	return b
}

type outcome struct {
	answered bool
	result   int
	arg      []byte
	params   []byte
}

// begin starts a request and advances the clock by a second.
func (b *bench) begin(p *Process, tid int, a []byte, request uint32, params []byte, fault bool, fd int) *outcome {
	o := &outcome{}
	b.Ioctl(p, p.PID, tid, request, a, params, fault, fd, func(result int, arg, params []byte) {
		*o = outcome{true, result, arg, params}
	})
	b.pass(time.Second)
	return o
}

func (b *bench) pass(d time.Duration) {
	b.m.now = b.m.now.Add(d)
	b.Advance()
}

func (b *bench) as(p *Process, tid int, a []byte, request uint32, params []byte, fd int) outcome {
	b.t.Helper()
	o := b.begin(p, tid, a, request, params, false, fd)
	if !o.answered {
		b.t.Fatalf("%#x: no answer", request)
	}
	return *o
}

func (b *bench) call(request uint32, a, params []byte) outcome {
	b.t.Helper()
	return b.as(b.p, self, a, request, params, -1)
}

func (b *bench) expect(what string, o outcome, want unix.Errno) {
	b.t.Helper()
	if o.result != -int(want) {
		b.t.Errorf("%s: %d, want -%d (%v)", what, o.result, int(want), want)
	}
}

func (b *bench) create(puts ...put) outcome {
	b.t.Helper()
	return b.call(0xC0604B02, b.queueArg(puts...), nil)
}

func (b *bench) update(puts ...put) outcome {
	b.t.Helper()
	all := append([]put{at64(0, ringAt), at32(12, 4096), at32(16, 100), at32(20, 7)}, puts...)
	return b.call(0x40184B07, arg(24, all...), nil)
}

func (b *bench) trap(pid int, op uint32, puts ...put) outcome {
	b.t.Helper()
	return b.call(0xC0204B26, arg(32, append(puts, at32(0, uint32(pid)), at32(4, op))...), nil)
}

func (b *bench) enableSelf() {
	b.t.Helper()
	b.expect("runtime", b.call(0xC0104B25, arg(16, at32(8, 1)), nil), 0)
	b.expect("enable", b.as(b.p, self, arg(32, at32(0, self), at32(24, 16)), 0xC0204B26, make([]byte, 16), 5), 0)
}

func (b *bench) suspend(ids ...uint32) outcome {
	b.t.Helper()
	return b.call(0xC0204B26, arg(32, at32(0, self), at32(4, abi.KFD_IOC_DBG_TRAP_SUSPEND_QUEUES), at64(16, 1), at32(24, uint32(len(ids)))), words(4*len(ids), ids...))
}

func (b *bench) snapshot() outcome {
	b.t.Helper()
	return b.call(0xC0204B26, arg(32, at32(0, self), at32(4, abi.KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT), at64(8, abi.KFD_EC_MASK_QUEUE_NEW), at64(16, 1), at32(24, 4), at32(28, 64)), make([]byte, 256))
}

func (b *bench) resume(ids ...uint32) outcome {
	b.t.Helper()
	return b.call(0xC0204B26, arg(32, at32(0, self), at32(4, abi.KFD_IOC_DBG_TRAP_RESUME_QUEUES), at64(8, 1), at32(16, uint32(len(ids)))), words(4*len(ids), ids...))
}

func u32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
