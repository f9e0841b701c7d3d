// SPDX-License-Identifier: Apache-2.0

package wire

import "xsched/internal/model"

// ClientPage is the client's view of a page, for the guardian, which acts for processes without the
// shim, and for tests.
type ClientPage struct{ *Page }

// LastHeartbeat returns the time of the engine's last heartbeat.
func (c ClientPage) LastHeartbeat() model.Time {
	return model.Time(load64(c.mem, OffHeaderHeartbeatNS))
}

// Gate reads the daemon's half of slot i.
func (c ClientPage) Gate(i int) (held bool, inFlight, batch uint32) {
	at, ok := slot(i)
	if !ok {
		return false, 0, 0
	}
	return load32(c.mem, at+OffQueueGate) == GateHeld, load32(c.mem, at+OffQueueInFlight), load32(c.mem, at+OffQueueBatch)
}

// CreateQueue creates a queue of a device in slot i.
func (c ClientPage) CreateQueue(i int, domain, busSlot uint32) {
	at, ok := slot(i)
	if !ok {
		return
	}
	store32(c.mem, at+OffQueuePCIDomain, domain)
	store32(c.mem, at+OffQueuePCIBusSlot, busSlot)
	if t := load64(c.mem, at+OffQueueTransitions); t&1 == 1 {
		store64(c.mem, at+OffQueueBusyNS, 0) // its work is gone too
		store64(c.mem, at+OffQueueTransitions, t+1)
	}
	store64(c.mem, at+OffQueueGeneration, load64(c.mem, at+OffQueueGeneration)|1)
	if n := load64(c.mem, OffHeaderQueueCount); n <= uint64(i) {
		store64(c.mem, OffHeaderQueueCount, uint64(i)+1)
	}
}

// DestroyQueue empties slot i.
func (c ClientPage) DestroyQueue(i int) {
	if at, ok := slot(i); ok {
		store64(c.mem, at+OffQueueGeneration, (load64(c.mem, at+OffQueueGeneration)|1)+1)
	}
}

// SetBusy marks slot i busy or idle and reports whether that changed it.
func (c ClientPage) SetBusy(i int, busy bool, now model.Time) bool {
	at, ok := slot(i)
	if !ok {
		return false
	}
	t := load64(c.mem, at+OffQueueTransitions)
	if (t&1 == 1) == busy {
		return false
	}
	worked := load64(c.mem, at+OffQueueBusyNS)
	if busy {
		worked -= uint64(now)
	} else {
		worked += uint64(now)
	}
	store64(c.mem, at+OffQueueChangedNS, uint64(now))
	store64(c.mem, at+OffQueueBusyNS, worked)
	store64(c.mem, at+OffQueueTransitions, t+1)
	return true
}

// SetFed records that the program starts waiting for the queue of slot i.
func (c ClientPage) SetFed(i int, now model.Time) {
	if at, ok := slot(i); ok {
		store64(c.mem, at+OffQueueFedNS, uint64(now))
	}
	if at, ok := c.progress(i); ok {
		store64(c.mem, at+OffProgressWaits, load64(c.mem, at+OffProgressWaits)+1)
	}
}

// SetTally reports the work of slot i so far.
func (c ClientPage) SetTally(i int, launches, copies uint64) {
	if at, ok := slot(i); ok {
		store64(c.mem, at+OffQueueSubmitted, launches+copies)
	}
	if at, ok := c.progress(i); ok {
		store64(c.mem, at+OffProgressLaunches, launches)
		store64(c.mem, at+OffProgressCopies, copies)
	}
}

// Tell returns the reports that the daemon asks for about slot i.
func (c ClientPage) Tell(i int) uint32 {
	at, ok := slot(i)
	if !ok {
		return 0
	}
	return load32(c.mem, at+OffQueueTell)
}

// Quiet reports that changes of slot i need no doorbell. Call it after the change.
func (c ClientPage) Quiet(i int) bool {
	at, ok := slot(i)
	return ok && load32(c.mem, at+OffQueueQuiet) != 0
}

// CreateStream creates a queue for one stream in slot i.
func (c ClientPage) CreateStream(i int, domain, busSlot uint32, priority int32) {
	at, ok := slot(i)
	if !ok {
		return
	}
	store32(c.mem, at+OffQueueKind, QueueStream)
	store32(c.mem, at+OffQueuePriority, uint32(priority))
	c.CreateQueue(i, domain, busSlot)
}

// BeginRequest begins a marked request.
func (c ClientPage) BeginRequest() {
	at := RequestsOffset + OffRequestsBegun
	store64(c.mem, at, load64(c.mem, at)+1)
}

// Corrupt overwrites the state of slot i.
func (c ClientPage) Corrupt(i int, transitions, changed, busy uint64) {
	if at, ok := slot(i); ok {
		store64(c.mem, at+OffQueueChangedNS, changed)
		store64(c.mem, at+OffQueueBusyNS, busy)
		store64(c.mem, at+OffQueueTransitions, transitions)
	}
}

// FinishRequest records a request under name 0.
func (c ClientPage) FinishRequest(begin, end model.Time) {
	n := load64(c.mem, RequestsOffset+OffRequestsFinished)
	if begun := RequestsOffset + OffRequestsBegun; load64(c.mem, begun) <= n {
		store64(c.mem, begun, n+1)
	}
	at := RequestsOffset + OffRequestsRing + int(n%RequestRing)*SizeOfRequest
	store64(c.mem, at+OffRequestBeginNS, uint64(begin))
	store64(c.mem, at+OffRequestEndNS, uint64(end))
	store32(c.mem, at+OffRequestName, 0)
	store64(c.mem, at+OffRequestSequence, n+1)
	store64(c.mem, RequestsOffset+OffRequestsFinished, n+1)
}

// SetMemory writes the client's entry of one device, the first one unless m.Entry says otherwise.
func (c ClientPage) SetMemory(m *DeviceMemory) {
	at := MemoryOffset + m.Entry*SizeOfMemoryDevice
	word := func(offset int, v uint64) { store64(c.mem, at+offset, v) }
	store32(c.mem, at+OffMemoryDevicePCIDomain, uint32(uint64(m.Device)>>16))
	store32(c.mem, at+OffMemoryDevicePCIBusSlot, uint32(uint64(m.Device)&0xffff))
	word(OffMemoryDeviceUsed, uint64(m.Used))
	word(OffMemoryDeviceRefused, m.Refused)
	word(OffMemoryDeviceMovable, uint64(m.Movable))
	word(OffMemoryDeviceAway, uint64(m.Away))
	store32(c.mem, at+OffMemoryDeviceResidency, m.Residency)
	store32(c.mem, at+OffMemoryDeviceResult, m.Result)
	var waiting uint64
	if m.Waits {
		waiting = 1
	}
	word(OffMemoryDeviceWaitingNS, waiting)
	word(OffMemoryDeviceRoom, uint64(m.Room))
	word(OffMemoryDeviceWantedNS, m.Request)
	word(OffMemoryDeviceWanted, uint64(m.Wanted))
	word(OffMemoryDevicePinned, uint64(m.Pinned))
	word(OffMemoryDeviceMoveBegunNS, uint64(m.MoveBegun))
	word(OffMemoryDeviceMoveEndedNS, uint64(m.MoveEnded))
	word(OffMemoryDeviceMoveBytes, uint64(m.MoveBytes))
	word(OffMemoryDeviceMoved, uint64(m.Moved))
	word(OffMemoryDeviceMovesOut, m.Out)
	word(OffMemoryDeviceMovesBack, m.Back)
	word(OffMemoryDeviceBytesOut, uint64(m.BytesOut))
	word(OffMemoryDeviceBytesBack, uint64(m.BytesBack))
	for reason, bytes := range m.Fixed {
		word(OffMemoryDeviceFixed+8*reason, uint64(bytes))
	}
	word(OffMemoryDeviceOrder, m.Order)
	word(OffMemoryDeviceKnown, 1)
}

// MemoryDemand reads the daemon's order about an entry.
func (c ClientPage) MemoryDemand(entry int) MemoryDemand {
	at := MemoryOffset + OffMemoryOrders + entry*SizeOfMemoryOrder
	return MemoryDemand{
		Sequence: load64(c.mem, at+OffMemoryOrderSequence), Want: load32(c.mem, at+OffMemoryOrderWant), Bytes: model.Bytes(load64(c.mem, at+OffMemoryOrderBytes)),
		Answered: load64(c.mem, at+OffMemoryOrderAnsweredNS), Verdict: load32(c.mem, at+OffMemoryOrderVerdict), Host: model.Bytes(load64(c.mem, at+OffMemoryOrderHostBytes)),
	}
}

// Movable reads whether memory shall be movable.
func (c ClientPage) Movable() bool { return load64(c.mem, OffHeaderMemoryMovable) == 1 }
