// SPDX-License-Identifier: Apache-2.0

package wire

import "xsched/internal/model"

// SetMemoryQuota writes what the process may allocate on each device; 0: no quota. Clients of version 4
// enforce none.
func (p *Page) SetMemoryQuota(bytes model.Bytes) {
	quota := uint64(MemoryNoQuota)
	if bytes > 0 {
		quota = uint64(bytes)
	}
	if p.version >= 5 {
		store64(p.mem, OffHeaderMemoryQuota, quota)
	}
}

// DeviceMemory is the memory that a process has allocated on one device, as it says.
type DeviceMemory struct {
	Device  model.DeviceID
	Used    model.Bytes
	Refused uint64 // allocations that the quota did not permit
}

// Memory reads each word once. A client of version 4 says nothing.
func (p *Page) Memory() []DeviceMemory {
	if len(p.mem) != PageBytes {
		return nil
	}
	var out []DeviceMemory
	for i := range MemoryDevices {
		at := MemoryOffset + i*SizeOfMemoryDevice
		if load64(p.mem, at+OffMemoryDeviceKnown) != 1 {
			break
		}
		domain, busSlot := load32(p.mem, at+OffMemoryDevicePCIDomain), load32(p.mem, at+OffMemoryDevicePCIBusSlot)
		out = append(out, DeviceMemory{
			Device:  model.MakeDeviceID(domain, busSlot>>8, busSlot>>3, busSlot),
			Used:    model.Bytes(load64(p.mem, at+OffMemoryDeviceUsed) & (1<<63 - 1)),
			Refused: load64(p.mem, at+OffMemoryDeviceRefused),
		})
	}
	return out
}
