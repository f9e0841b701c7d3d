// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// Variant selects the driver whose behavior is imitated.
type Variant string

// The variants: Linux's own, and AMD's driver package.
const (
	Upstream Variant = "upstream"
	DKMS     Variant = "dkms"
)

// Scheduler selects how queues are mapped to the hardware.
type Scheduler string

// HWS remaps all queues when one changes, MES only that one. NoHWS is a driver without firmware
// scheduling.
const (
	HWS   Scheduler = "hws"
	MES   Scheduler = "mes"
	NoHWS Scheduler = "none"
)

// Numbering selects how a process's queues are numbered.
type Numbering string

// Lowest is a stock driver: the lowest free number, also after a queue was destroyed. ByPID prefers
// four numbers that depend on the process, as some drivers do.
const (
	Lowest Numbering = "lowest"
	ByPID  Numbering = "by-pid"
)

// Config describes the imitated driver and devices.
type Config struct {
	GPUs      int
	Minor     uint32 // of the interface: 1.Minor
	Variant   Variant
	Scheduler Scheduler
	GFX       uint32 // gfx_target_version: 90402 is gfx942
	Numbers   Numbering
	Memory    uint64 // VRAM of each GPU
}

// DefaultConfig is two gfx942 with the interface of Linux 6.12.
func DefaultConfig() Config {
	return Config{GPUs: 2, Minor: 17, Variant: Upstream, Scheduler: HWS, GFX: 90402, Numbers: Lowest, Memory: 24 << 30}
}

// Faults inject misbehavior.
type Faults struct {
	UnmapFails  bool // the firmware does not reply: bit 30 in suspend, ETIME in update
	NoMemory    bool // allocations of VRAM fail
	SuspendNoop bool // suspend reports success, and the queues keep running
}

// System is the virtual device's interface to the host.
type System interface {
	Now() model.Time
	// Tracer returns the thread that traces the leader of a process; 0 if none.
	Tracer(pid int) int
	// Exists reports whether a process exists.
	Exists(pid int) bool
	// Write writes to a process's memory, best effort.
	Write(pid int, address uint64, data []byte)
	// Notify writes one byte to a descriptor of a client.
	Notify(fd int, b byte)
	CloseFD(fd int)
	// Changed republishes the process's queues.
	Changed(p *Process)
	// Timer schedules a call of Advance.
	Timer(at model.Time)
}

// Kernel is the driver's state. Every method takes its lock.
type Kernel struct {
	config Config
	system System

	mu        sync.Mutex
	gpus      []*gpu
	processes map[int]*Process
	accounts  []*gpumodel.Account // of all processes, ended ones included
	remaps    uint64
	faults    Faults
}

// gpu is one device and its model.
type gpu struct {
	id     uint32
	number int
	model  *gpumodel.GPU

	timeline *gpumodel.Timeline
	sdma     map[sdmaSlot]bool // in use, by any process
}

// Process is a kfd_process: it lives as long as the process, not as long as its files.
type Process struct {
	PID     int
	account *gpumodel.Account
	queues  []*queue // in the order of creation
	vms     map[uint32]int32
	vram    map[uint32]vram // by GPU
	groups  map[uint32]*gpumodel.Group
	memory  map[uint64]*memory
	events  map[uint32]*event
	handles uint64
	debug   debugState
	wedged  bool // the driver leaked a lock
	waiting []func()
}

// call is one ioctl under way. done is called once, with the kernel's lock held.
type call struct {
	process *Process
	tid     int
	arg     []byte
	params  []byte // what the embedded pointer refers to
	fault   bool   // the embedded pointer leads nowhere
	fd      int    // that came with the request; -1: none
	done    func(result int)
}

func (c *call) u32(at int) uint32          { return binary.LittleEndian.Uint32(c.arg[at:]) }
func (c *call) u64(at int) uint64          { return binary.LittleEndian.Uint64(c.arg[at:]) }
func (c *call) put32(at int, value uint32) { binary.LittleEndian.PutUint32(c.arg[at:], value) }
func (c *call) put64(at int, value uint64) { binary.LittleEndian.PutUint64(c.arg[at:], value) }
func fails(e unix.Errno) int               { return -int(e) }

// costs returns the device's costs. No measurement of a remap is published; these values are in the
// range that traces of the driver suggest, where creating a queue takes about 150 us.
func costs() gpumodel.Costs {
	const us = time.Microsecond
	c := gpumodel.DefaultCosts()
	c.ComputeSlice = 10 * time.Millisecond // the quantum of a process in the runlist
	c.Suspend = gpumodel.RPC{Effect: 100 * us, Reply: 150 * us}
	c.Resume = gpumodel.RPC{Effect: 100 * us, Reply: 150 * us}
	return c
}

// NewKernel returns a driver without processes.
func NewKernel(config Config, system System) *Kernel {
	k := &Kernel{config: config, system: system, processes: map[int]*Process{}}
	for i := range config.GPUs {
		timeline := gpumodel.NewTimeline(i)
		k.gpus = append(k.gpus, &gpu{id: gpuID(i), number: i, model: gpumodel.NewGPU(system.Now(), costs(), timeline, nil), timeline: timeline, sdma: map[sdmaSlot]bool{}})
	}
	return k
}

// gpuID is a hash on real systems. The first equals that of the recorded dumps.
func gpuID(i int) uint32 { return uint32(63420 + i) }

// SetFaults replaces the injected faults.
func (k *Kernel) SetFaults(f Faults) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults = f
}

// Open is open("/dev/kfd"). A second call returns the same process.
func (k *Kernel) Open(pid int, name string) *Process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.open(pid, name)
}

func (k *Kernel) open(pid int, name string) *Process {
	p := k.processes[pid]
	if p == nil {
		p = &Process{
			PID: pid, account: &gpumodel.Account{PID: pid, Name: name, Alive: true},
			vms: map[uint32]int32{}, vram: map[uint32]vram{}, groups: map[uint32]*gpumodel.Group{}, memory: map[uint64]*memory{}, events: map[uint32]*event{},
			debug: debugState{fd: -1},
		}
		k.processes[pid] = p
		k.enlist(p.account)
		k.system.Changed(p)
	}
	return p
}

// Exit removes an ended process and its queues, and resumes its debugged processes.
func (k *Kernel) Exit(pid int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.processes[pid]
	if p == nil {
		return
	}
	k.advance()
	delete(k.processes, pid)
	for _, other := range k.processes {
		if other.debug.debugger == p {
			k.disable(other)
		}
	}
	if p.debug.enabled {
		k.disable(p)
	}
	for _, q := range p.queues {
		k.drop(q)
	}
	p.queues = nil
	for id, group := range p.groups {
		k.gpu(id).model.RemoveGroup(group)
	}
	for _, v := range p.vram {
		k.system.CloseFD(v.fd)
	}
	p.account.Alive = false
	k.system.Changed(p)
	k.arm()
}

func (k *Kernel) gpu(id uint32) *gpu {
	for _, g := range k.gpus {
		if g.id == id {
			return g
		}
	}
	return nil
}

// Ioctl executes a request of a process. It calls done once, possibly later.
func (k *Kernel) Ioctl(p *Process, caller, tid int, request uint32, arg, params []byte, fault bool, fd int, done func(result int, arg, params []byte)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.advance()
	defer k.arm()
	nr := abi.Number(request)
	h, known := handlers[nr]
	if nr == abi.Number(abi.AMDKFD_IOC_DBG_TRAP) || nr == abi.Number(abi.AMDKFD_IOC_RUNTIME_ENABLE) {
		known = k.config.Minor >= abi.MinorDebugger
	}
	given := len(arg)
	c := &call{process: p, tid: tid, arg: make([]byte, max(h.size, given)), params: append([]byte(nil), params...), fault: fault, fd: fd}
	copy(c.arg, arg)
	answered := false
	c.done = func(result int) {
		if answered {
			return
		}
		answered = true
		if c.fd >= 0 {
			k.system.CloseFD(c.fd)
		}
		done(result, c.arg[:given], c.params)
	}
	switch {
	case request>>8&0xff != 'K':
		c.done(fails(unix.ENOTTY))
	case !known && k.config.Variant == DKMS:
		c.done(fails(unix.EINVAL))
	case !known:
		c.done(fails(unix.ENOTTY))
	case caller != p.PID: // inherited by fork
		c.done(fails(unix.EBADF))
	default:
		h.do(k, c)
	}
}

// accept ignores a request that has no effect here.
func accept(_ *Kernel, c *call) { c.done(0) }

func refuse(_ *Kernel, c *call) { c.done(fails(unix.EINVAL)) }

func (k *Kernel) getVersion(c *call) {
	c.put32(0, 1)
	c.put32(4, k.config.Minor)
	c.done(0)
}

// Advance simulates the devices up to now.
func (k *Kernel) Advance() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.advance()
	k.arm()
}

func (k *Kernel) advance() {
	now := k.system.Now()
	for _, g := range k.gpus {
		g.model.Advance(now)
	}
}

func (k *Kernel) arm() {
	next := model.Never
	for _, g := range k.gpus {
		next = min(next, g.model.NextEvent())
	}
	k.system.Timer(next)
}
