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

// SetMemoryMovable writes whether memory that the process allocates from now on is movable. Clients of version
// 4 know of none.
func (p *Page) SetMemoryMovable(on bool) {
	var word uint64
	if on {
		word = 1
	}
	if p.version >= 5 {
		store64(p.mem, OffHeaderMemoryMovable, word)
	}
}

// memoryMost bounds every amount of memory that a client states, so that sums can't overflow.
const memoryMost = 1 << 50

// DeviceMemory is the memory that a process has allocated on one device, as it says.
type DeviceMemory struct {
	Device    model.DeviceID
	Entry     int // in the page
	Used      model.Bytes
	Refused   uint64 // allocations that the quota did not permit
	Movable   model.Bytes
	Away      model.Bytes
	Residency uint32
	Result    uint32 // of the last move
	Order     uint64 // the newest one that was carried out or refused

	Wanted  model.Bytes // by an allocation that had no room
	Request uint64      // identifies it
	Waits   bool        // a call waits for memory that is not resident
	Room    model.Bytes // free bytes of the device
	Pinned  model.Bytes

	MoveBegun, MoveEnded model.Time
	MoveBytes, Moved     model.Bytes // of the current or the last move
	Out, Back            uint64      // completed moves
	BytesOut, BytesBack  model.Bytes
	Fixed                [MemoryFixed]model.Bytes // by reason; what is not movable
}

// Moves reports that a move is in progress.
func (m *DeviceMemory) Moves() bool { return m.Residency != Resident && m.Residency != Away }

// HasMemory reports whether the client has memory on a device.
func (p *Page) HasMemory() bool {
	return len(p.mem) == PageBytes && load64(p.mem, MemoryOffset+OffMemoryDeviceKnown) == 1
}

// Memory reads each word once. A client of version 4 says nothing.
func (p *Page) Memory() []DeviceMemory { return p.AppendMemory(nil) }

// AppendMemory is Memory without an allocation for those who read often.
func (p *Page) AppendMemory(out []DeviceMemory) []DeviceMemory {
	if len(p.mem) != PageBytes {
		return out
	}
	for i := range MemoryDevices {
		at := MemoryOffset + i*SizeOfMemoryDevice
		if load64(p.mem, at+OffMemoryDeviceKnown) != 1 {
			break
		}
		out = append(out, p.deviceMemory(i, at))
	}
	return out
}

func (p *Page) deviceMemory(i, at int) DeviceMemory {
	word := func(offset int) uint64 { return load64(p.mem, at+offset) }
	bytes := func(offset int) model.Bytes { return model.Bytes(min(word(offset), memoryMost)) }
	domain, busSlot := load32(p.mem, at+OffMemoryDevicePCIDomain), load32(p.mem, at+OffMemoryDevicePCIBusSlot)
	m := DeviceMemory{
		Device: model.MakeDeviceID(domain, busSlot>>8, busSlot>>3, busSlot), Entry: i,
		// The order comes first: its effects belong to it or to a later one.
		Order:  word(OffMemoryDeviceOrder),
		Result: min(load32(p.mem, at+OffMemoryDeviceResult), MoveRefused), Residency: min(load32(p.mem, at+OffMemoryDeviceResidency), Returning),
		Used: bytes(OffMemoryDeviceUsed), Refused: word(OffMemoryDeviceRefused),
		Request: word(OffMemoryDeviceWantedNS), Wanted: bytes(OffMemoryDeviceWanted), Waits: word(OffMemoryDeviceWaitingNS) != 0,
		Room: bytes(OffMemoryDeviceRoom), Pinned: bytes(OffMemoryDevicePinned),
		MoveBegun: p.moveTime(at + OffMemoryDeviceMoveBegunNS), MoveEnded: p.moveTime(at + OffMemoryDeviceMoveEndedNS),
		MoveBytes: bytes(OffMemoryDeviceMoveBytes), Out: word(OffMemoryDeviceMovesOut), Back: word(OffMemoryDeviceMovesBack),
		BytesOut: bytes(OffMemoryDeviceBytesOut), BytesBack: bytes(OffMemoryDeviceBytesBack),
	}
	m.Movable = min(bytes(OffMemoryDeviceMovable), m.Used)
	m.Away = min(bytes(OffMemoryDeviceAway), m.Movable)
	m.Moved = min(bytes(OffMemoryDeviceMoved), m.MoveBytes)
	for reason := range m.Fixed {
		m.Fixed[reason] = bytes(OffMemoryDeviceFixed + 8*reason)
	}
	return m
}

func (p *Page) moveTime(at int) model.Time { return model.Time(load64(p.mem, at) & (1<<63 - 1)) }

// MemoryDemand is what the daemon wants of the memory of one entry of the page.
type MemoryDemand struct {
	Sequence uint64
	Want     uint32
	Verdict  uint32
	Bytes    model.Bytes
	Host     model.Bytes // host memory that the process may pin
	Answered uint64      // DeviceMemory.Request that Verdict is about
}

// SetMemoryDemand writes an order: its number after what it says, and the answer after the verdict. It wakes those
// who wait for one.
func (p *Page) SetMemoryDemand(m *DeviceMemory, d *MemoryDemand) {
	if len(p.mem) != PageBytes || m.Entry < 0 || m.Entry >= MemoryDevices {
		return
	}
	at := MemoryOffset + OffMemoryOrders + m.Entry*SizeOfMemoryOrder
	store32(p.mem, at+OffMemoryOrderPCIDomain, uint32(uint64(m.Device)>>16))
	store32(p.mem, at+OffMemoryOrderPCIBusSlot, uint32(uint64(m.Device)&0xffff))
	store64(p.mem, at+OffMemoryOrderHostBytes, uint64(d.Host))
	store32(p.mem, at+OffMemoryOrderVerdict, d.Verdict)
	store64(p.mem, at+OffMemoryOrderAnsweredNS, d.Answered)
	if load64(p.mem, at+OffMemoryOrderSequence) != d.Sequence {
		store32(p.mem, at+OffMemoryOrderWant, d.Want)
		store64(p.mem, at+OffMemoryOrderBytes, uint64(d.Bytes))
		store64(p.mem, at+OffMemoryOrderSequence, d.Sequence)
	}
	store32(p.mem, OffHeaderMemoryOrders, load32(p.mem, OffHeaderMemoryOrders)+1)
	futexWake(p.mem, OffHeaderMemoryOrders)
}
