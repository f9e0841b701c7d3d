// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// memory is the driver's record of a buffer; its bytes belong to the program.
type memory struct {
	address, bytes uint64
	vram           bool
	gpus           []uint32 // mapped to
}

const allocVRAM = 1 // KFD_IOC_ALLOC_MEM_FLAGS_VRAM

func (k *Kernel) acquireVM(c *call) {
	p, id := c.process, c.u32(4)
	had, again := p.vms[id]
	switch {
	case k.gpu(id) == nil, c.fd < 0:
		c.done(fails(unix.EINVAL))
	case again && had != int32(c.u32(0)):
		c.done(fails(unix.EBUSY))
	default:
		p.vms[id] = int32(c.u32(0))
		p.keep(id, c)
		c.done(0)
	}
}

// apertures returns those of gfx9 and later: fixed windows for local data and scratch.
func (k *Kernel) apertures() []byte {
	var out []byte
	for _, g := range k.gpus {
		var e [56]byte
		for i, v := range []uint64{1 << 48, 1<<48 | 0xffffffff, 2 << 48, 2<<48 | 0xffffffff, 0x4000, 1<<47 - 1} {
			binary.LittleEndian.PutUint64(e[8*i:], v)
		}
		binary.LittleEndian.PutUint32(e[48:], g.id)
		out = append(out, e[:]...)
	}
	return out
}

func (k *Kernel) getApertures(c *call) {
	n := copy(c.arg[:392], k.apertures()) / 56
	c.put32(392, uint32(n))
	c.done(0)
}

func (k *Kernel) getAperturesNew(c *call) {
	room := c.u32(8)
	if room == 0 {
		c.put32(8, uint32(len(k.gpus)))
		c.done(0)
		return
	}
	n := min(int(room), len(k.gpus))
	if c.fault || len(c.params) < 56*n {
		c.done(fails(unix.EFAULT))
		return
	}
	copy(c.params, k.apertures()[:56*n])
	c.put32(8, uint32(n))
	c.done(0)
}

func (k *Kernel) allocMemory(c *call) {
	p, id, bytes := c.process, c.u32(32), c.u64(8)
	_, bound := p.vms[id]
	switch {
	case bytes == 0, k.gpu(id) == nil:
		c.done(fails(unix.EINVAL))
		return
	case !bound:
		c.done(fails(unix.ENODEV))
		return
	}
	vram := c.u32(36)&allocVRAM != 0
	if bytes > k.config.Memory || vram && (k.faults.NoMemory || bytes > k.config.Memory-k.usedVRAM(id)) {
		c.done(fails(unix.ENOMEM))
		return
	}
	p.handles++
	handle := uint64(id)<<32 | p.handles
	p.memory[handle] = &memory{address: c.u64(0), bytes: bytes, vram: vram}
	c.put64(16, handle)
	if c.u64(24)>>62 == 0 { // else doorbells, whose address the caller knows
		c.put64(24, mmapMemory|p.handles*pageBytes)
	}
	c.done(0)
}

func (k *Kernel) freeMemory(c *call) {
	p, handle := c.process, c.u64(0)
	if p.memory[handle] == nil {
		c.done(fails(unix.EINVAL))
		return
	}
	delete(p.memory, handle)
	c.done(0)
}

// deviceIDs decodes the array argument of MAP and UNMAP.
func (c *call) deviceIDs() ([]uint32, unix.Errno) {
	n := c.u32(16)
	if n == 0 || c.u32(20) > n {
		return nil, unix.EINVAL
	}
	if c.fault || len(c.params) < 4*int(n) {
		return nil, unix.EFAULT
	}
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = binary.LittleEndian.Uint32(c.params[4*i:])
	}
	return ids, 0
}

func (k *Kernel) mapMemory(c *call) {
	ids, e := c.deviceIDs()
	m := c.process.memory[c.u64(0)]
	switch {
	case c.process.wedged:
		return
	case e != 0:
		c.done(fails(e))
		return
	case m == nil:
		c.done(fails(unix.ENOMEM))
		return
	}
	for _, id := range ids {
		if _, bound := c.process.vms[id]; !bound {
			c.done(fails(unix.EINVAL))
			return
		}
		if !slices.Contains(m.gpus, id) {
			m.gpus = append(m.gpus, id)
		}
		c.put32(20, c.u32(20)+1)
	}
	c.done(0)
}

func (k *Kernel) unmapMemory(c *call) {
	ids, e := c.deviceIDs()
	m := c.process.memory[c.u64(0)]
	switch {
	case e != 0:
		c.done(fails(e))
		return
	case m == nil:
		c.done(fails(unix.ENODEV))
		return
	}
	for _, id := range ids {
		m.gpus = slices.DeleteFunc(m.gpus, func(g uint32) bool { return g == id })
		c.put32(20, c.u32(20)+1)
	}
	c.done(0)
}

func (k *Kernel) getClocks(c *call) {
	now := uint64(k.system.Now())
	c.put64(0, now/10) // 100 MHz
	c.put64(8, now)
	c.put64(16, now)
	c.put64(24, 1_000_000_000)
	c.done(0)
}

// usedVRAM is what all processes have on a GPU.
func (k *Kernel) usedVRAM(id uint32) (used uint64) {
	for _, p := range k.processes {
		used += p.usedVRAM(id)
	}
	return used
}

// usedVRAM is what a process has on a GPU.
func (p *Process) usedVRAM(id uint32) (used uint64) {
	for handle, m := range p.memory {
		if m.vram && uint32(handle>>32) == id {
			used += m.bytes
		}
	}
	return used
}

func (k *Kernel) available(c *call) {
	c.put64(0, k.config.Memory-min(k.usedVRAM(c.u32(8)), k.config.Memory))
	c.done(0)
}

// event is a KFD event. Only requests raise one.
type event struct {
	id        uint32
	autoReset bool
	set       bool
}

func (k *Kernel) createEvent(c *call) {
	p := c.process
	if len(p.events) >= 4096 {
		c.done(fails(unix.ENOSPC))
		return
	}
	id := uint32(1)
	for p.events[id] != nil {
		id++
	}
	p.events[id] = &event{id: id, autoReset: c.u32(16) != 0}
	c.put32(8, id)
	c.put32(24, id)
	c.put32(28, id)
	c.done(0)
}

func (k *Kernel) withEvent(c *call, f func(*event)) {
	e := c.process.events[c.u32(0)]
	if e == nil {
		c.done(fails(unix.EINVAL))
		return
	}
	f(e)
	c.done(0)
}

func (k *Kernel) destroyEvent(c *call) {
	k.withEvent(c, func(e *event) { delete(c.process.events, e.id) })
}
func (k *Kernel) setEvent(c *call)   { k.withEvent(c, func(e *event) { e.set = true }) }
func (k *Kernel) resetEvent(c *call) { k.withEvent(c, func(e *event) { e.set = false }) }

// waitEvents returns immediately: the current state or a timeout.
func (k *Kernel) waitEvents(c *call) {
	const entry, idAt = 48, 40
	n := int(c.u32(8))
	if c.fault || len(c.params) < n*entry {
		c.done(fails(unix.EFAULT))
		return
	}
	ready := 0
	for i := range n {
		e := c.process.events[binary.LittleEndian.Uint32(c.params[i*entry+idAt:])]
		if e == nil {
			c.put32(20, 2) // KFD_IOC_WAIT_RESULT_FAIL
			c.done(fails(unix.EINVAL))
			return
		}
		if e.set {
			ready++
			e.set = !e.autoReset
		}
	}
	result := uint32(1) // KFD_IOC_WAIT_RESULT_TIMEOUT
	if ready == n || ready > 0 && c.u32(12) == 0 {
		result = 0
	}
	c.put32(20, result)
	c.done(0)
}
