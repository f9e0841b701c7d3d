// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"
	"time"

	"xsched/internal/driver/nvidia/abi"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

// escVGMemory is private: it takes device memory for a context, gives it back, asks whether a step may proceed
// and how long it takes, counts accesses to memory that is not mapped, or says how much there is. Hardware needs
// several objects for that.
const escVGMemory = 0xE1

var reqVGMemory = abi.Request(escVGMemory, 64)

// Operations of escVGMemory; vgpu.h has them too.
const (
	memoryInfo = iota
	memoryTake
	memoryGive
	memoryMap
	memoryUnmap
	memoryPin
	memoryCopy   // asked only while a fault about copies is set
	memoryMissed // a kernel or a copy accesses an address that is not mapped
	memoryTorn   // memory was unmapped that submitted work uses
)

// memorySteps are the operations that a fault can make fail or slow.
var memorySteps = map[string]uint32{
	"create": memoryTake, "map": memoryMap, "unmap": memoryUnmap, "pin": memoryPin, "copy": memoryCopy,
}

// The capacity of a GPU. A context's file has room for it and for pinned host memory; its sparse pages cost
// nothing until they are written. MaxMemory follows from the addresses of a context (VG_ADDRESS_BITS).
const (
	DefaultMemory = 4 << 30
	MaxMemory     = 24 << 30
	hostBytes     = 4 << 30
)

// memoryCall executes a request: hClient 0, hGroup 4, operation 8, GPU 12 (of info), bytes 16; replies free 24,
// total 32, status 40, and how long the step takes at least 48.
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
		status, takes := f.rm.changeMemory(f, o, op, bytes)
		le.PutUint64(p.Arg[48:], uint64(takes))
		if status != abi.NV_OK {
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

// changeMemory performs a step for a context. It returns the status, and how long the step takes. The context's
// end gives back what is left.
func (rm *resourceManager) changeMemory(f *rmFile, o *object, op uint32, bytes uint64) (status uint32, takes time.Duration) {
	fails, slower := rm.faults.Step(op, f.account.PID)
	if fails {
		return map[bool]uint32{true: abi.NV_ERR_NO_MEMORY, false: abi.NV_ERR_INSUFFICIENT_RESOURCES}[op == memoryTake], slower
	}
	switch op {
	case memoryTake:
		if rm.faults.NoMemory[o.device] || bytes > rm.capacity-rm.used[o.device] {
			return abi.NV_ERR_NO_MEMORY, slower
		}
		o.memory += bytes
		rm.used[o.device] += bytes
	case memoryGive:
		if bytes > o.memory {
			return abi.NV_ERR_INVALID_ARGUMENT, slower
		}
		o.memory -= bytes
		rm.used[o.device] -= bytes
	case memoryMap:
		if rm.faults.MapFails[f.account.PID] {
			return abi.NV_ERR_INSUFFICIENT_RESOURCES, slower
		}
		return abi.NV_OK, mapTime + gpumodel.At(int64(bytes), mapBytesPerSecond) + slower
	case memoryUnmap, memoryCopy:
	case memoryPin:
		return abi.NV_OK, gpumodel.At(int64(bytes), rm.costs.PinBytesPerSecond) + slower
	case memoryMissed:
		f.account.Missed++
	case memoryTorn:
		f.account.Torn++
	default:
		return abi.NV_ERR_INVALID_ARGUMENT, slower
	}
	return abi.NV_OK, slower
}

// Mapping takes 25 us for 2 MiB and 60 us for 64 MiB on an H200.
const (
	mapTime           = 24 * time.Microsecond
	mapBytesPerSecond = 1.86e12
)

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
