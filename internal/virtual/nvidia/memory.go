// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"

	"xsched/internal/driver/nvidia/abi"
	vdevice "xsched/internal/virtual/device"
)

// escVGMemory is private: it takes device memory for a context, gives it back, allows a mapping, or says how
// much there is. Hardware needs several objects for that.
const escVGMemory = 0xE1

var reqVGMemory = abi.Request(escVGMemory, 64)

// Operations of escVGMemory; vgpu.h has them too.
const (
	memoryInfo = iota
	memoryTake
	memoryGive
	memoryMap
)

// The capacity of a GPU. A context's file has room for it and for pinned host memory; its sparse pages cost
// nothing until they are written. MaxMemory follows from the addresses of a context (VG_ADDRESS_BITS).
const (
	DefaultMemory = 4 << 30
	MaxMemory     = 24 << 30
	hostBytes     = 4 << 30
)

// memoryCall executes a request: hClient 0, hGroup 4, operation 8, GPU 12 (of info), bytes 16; replies free 24,
// total 32, status 40.
func (f *rmFile) memoryCall(p vdevice.Packet) {
	le := binary.LittleEndian
	put := func(status uint32) { le.PutUint32(p.Arg[40:], status) }
	c := f.clients[le.Uint32(p.Arg)]
	if c == nil {
		put(abi.NV_ERR_INVALID_CLIENT)
		return
	}
	op, device, bytes := le.Uint32(p.Arg[8:]), int(le.Uint32(p.Arg[12:])), le.Uint64(p.Arg[16:])
	if op != memoryInfo {
		o := c.objects[le.Uint32(p.Arg[4:])]
		if o == nil || o.area == nil {
			put(abi.NV_ERR_INVALID_OBJECT_HANDLE)
			return
		}
		device = o.device
		if status := f.rm.changeMemory(f, o, op, bytes); status != abi.NV_OK {
			put(status)
			return
		}
	}
	if device < 0 || device >= len(f.rm.gpus) {
		put(abi.NV_ERR_INVALID_DEVICE)
		return
	}
	le.PutUint64(p.Arg[24:], f.rm.capacity-f.rm.used[device])
	le.PutUint64(p.Arg[32:], f.rm.capacity)
	put(abi.NV_OK)
}

// changeMemory takes memory for a context or gives it back. The context's end gives back what is left.
func (rm *resourceManager) changeMemory(f *rmFile, o *object, op uint32, bytes uint64) uint32 {
	switch op {
	case memoryTake:
		if rm.faults.NoMemory[o.device] || bytes > rm.capacity-rm.used[o.device] {
			return abi.NV_ERR_NO_MEMORY
		}
		o.memory += bytes
		rm.used[o.device] += bytes
	case memoryGive:
		if bytes > o.memory {
			return abi.NV_ERR_INVALID_ARGUMENT
		}
		o.memory -= bytes
		rm.used[o.device] -= bytes
	case memoryMap:
		if rm.faults.MapFails[f.account.PID] {
			return abi.NV_ERR_INSUFFICIENT_RESOURCES
		}
	default:
		return abi.NV_ERR_INVALID_ARGUMENT
	}
	return abi.NV_OK
}

// memoryUse lists who has how much memory on which GPU.
func (rm *resourceManager) memoryUse() []vdevice.MemoryUse {
	type key struct{ device, pid int }
	sums := map[key]uint64{}
	for _, c := range rm.clients {
		for _, o := range c.objects {
			if o.memory > 0 {
				sums[key{o.device, c.account.PID}] += o.memory
			}
		}
	}
	var out []vdevice.MemoryUse
	for k, bytes := range sums {
		out = append(out, vdevice.MemoryUse{Device: k.device, PID: k.pid, Bytes: bytes})
	}
	return out
}
