// SPDX-License-Identifier: Apache-2.0

package sessiontest

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/model"
	"xsched/internal/quarantine"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

// GPU is the device of the clients' queues.
var GPU = model.MakeDeviceID(0, 1, 0, 0)

// Events of the driver in memory. A hand-over carries a descriptor, the others do not.
const (
	EventHandOver uint32 = iota + 1
	EventTimeslice
	EventOther
)

// Layout of the packets of the driver in memory: a list of event kinds.
const (
	frameType   = 255 << 8 // the last group of frame types, which no driver uses
	countOffset = wire.SizeOfFrame
	firstOffset = wire.SizeOfFrame + 8
	eventBytes  = 8
	maxEvents   = 64
)

// Events encodes a packet of the driver in memory.
func Events(kinds ...uint32) []byte {
	b, err := wire.EncodeList(frameType, len(kinds), countOffset, firstOffset, eventBytes, maxEvents)
	if err != nil {
		panic(err)
	}
	for i, kind := range kinds {
		binary.LittleEndian.PutUint32(b[firstOffset+i*eventBytes:], kind)
	}
	return b
}

// Hardware is a driver in memory. It implements driver.Session.
type Hardware struct {
	Caps   map[model.DeviceID]driver.Capability // set before use, or by a hand-over
	Hang   chan struct{}                        // unless nil, operations wait until it is closed
	Refuse atomic.Bool                          // operations fail
	Closed atomic.Bool
	Verify atomic.Bool // queues on a GPU without a capability do not compete
	// Judge judges other claims; nil: the driver lists every GPU, and verifies none.
	Judge func(gpu model.DeviceID) driver.Claim
	// Rejected counts descriptors that were something else.
	Rejected atomic.Int32

	mu     sync.Mutex
	files  []int
	state  model.Desired
	slices int
}

// Now returns the state in force.
func (h *Hardware) Now() model.Desired {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// Files returns how many descriptors the client has handed over.
func (h *Hardware) Files() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.files)
}

// Timeslices returns how many timeslice events have arrived.
func (h *Hardware) Timeslices() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.slices
}

// Wants implements driver.Receiver: a hand-over carries /dev/null.
func (h *Hardware) Wants(packet []byte) (quarantine.Want, bool) {
	n, err := wire.DecodeList(packet, frameType, countOffset, firstOffset, eventBytes, maxEvents)
	ok := err == nil && n == 1 && binary.LittleEndian.Uint32(packet[firstOffset:]) == EventHandOver
	return quarantine.Want{Device: unix.Mkdev(1, 3)}, ok
}

// Refused implements driver.Receiver.
func (h *Hardware) Refused([]byte, error) { h.Rejected.Add(1) }

// Frame implements driver.Session.
func (h *Hardware) Frame(packet []byte, fds []int) (bool, error) {
	n, err := wire.DecodeList(packet, frameType, countOffset, firstOffset, eventBytes, maxEvents)
	if err != nil || len(fds) > 1 {
		seqpacket.CloseAll(fds)
		return false, errors.Join(err, wire.ErrFrame)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(fds) == 1 {
		h.files = append(h.files, fds[0])
		h.Caps = map[model.DeviceID]driver.Capability{GPU: {MaxLevel: model.LevelInterrupt, Slices: true}}
	}
	for i := range n {
		switch kind := binary.LittleEndian.Uint32(packet[firstOffset+i*eventBytes:]); {
		case kind == EventHandOver && len(fds) == 0, kind < EventHandOver, kind > EventOther:
			return false, wire.ErrFrame
		case kind == EventTimeslice:
			h.slices++
		}
	}
	return false, nil
}

// Claim implements driver.Claimer.
func (h *Hardware) Claim(gpu model.DeviceID) driver.Claim {
	switch {
	case h.Verify.Load():
		return driver.ClaimVerified
	case h.Judge != nil:
		return h.Judge(gpu)
	}
	return driver.ClaimTrusted
}

// SetCaps changes the capabilities.
func (h *Hardware) SetCaps(caps map[model.DeviceID]driver.Capability) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Caps = caps
}

// Resolve implements driver.Session.
func (h *Hardware) Resolve(context.Context) (map[model.DeviceID]driver.Capability, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.Caps, nil
}

// Target implements driver.Session.
func (h *Hardware) Target(model.DeviceID) driver.Target { return target{h} }

// Why implements driver.Session.
func (h *Hardware) Why() (string, bool) { return "nothing handed over yet", false }

// Caught implements driver.Session.
func (h *Hardware) Caught() uint64 { return 0 }

// Disconnect implements driver.Session.
func (h *Hardware) Disconnect() {}

// HardwareQueues implements driver.Session.
func (h *Hardware) HardwareQueues(context.Context) ([]driver.HardwareQueue, error) { return nil, nil }

// OwnSlice implements driver.Session.
func (h *Hardware) OwnSlice(model.DeviceID) int64 { return 2048 }

// Close implements driver.Session.
func (h *Hardware) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, fd := range h.files {
		_ = unix.Close(fd)
	}
	h.files = nil
	h.Closed.Store(true)
}

// Attached is the Hardware of a process without a shim. It implements driver.Attached.
type Attached struct {
	*Hardware
	Ended func(restored bool)
}

// Capabilities implements driver.Attached.
func (a Attached) Capabilities() map[model.DeviceID]driver.Capability { return a.Caps }

// Guard implements driver.Attached.
func (a Attached) Guard(context.Context, uint64, int) (func(bool), error) { return a.Ended, nil }

// Free implements driver.Attached.
func (a Attached) Free(context.Context) (driver.Freed, error) { return driver.Freed{Queues: 1}, nil }

// RestoredByClose implements driver.Attached.
func (Attached) RestoredByClose() bool { return false }

// Poll implements driver.Attached.
func (Attached) Poll(context.Context) (bool, error) { return false, nil }

type target struct{ h *Hardware }

func (t target) Apply(_ context.Context, want model.Desired) error {
	if t.h.Hang != nil {
		<-t.h.Hang
	}
	if t.h.Refuse.Load() {
		return errors.New("refused")
	}
	t.h.mu.Lock()
	defer t.h.mu.Unlock()
	t.h.state = want
	return nil
}
func (target) Invalidate()  {}
func (target) Close() error { return nil }
