// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
)

// DevicePath is the driver's device node.
const DevicePath = "/dev/kfd"

// GraceDefault is the driver's own grace period of SUSPEND_QUEUES.
const GraceDefault = 0xFFFFFFFF

// Errors of the debugger route; test with errors.Is.
var (
	ErrNoRights   = errors.New("no permission to trace the process")
	ErrTraced     = errors.New("another debugger is attached")
	ErrNoKFD      = errors.New("the process does not use /dev/kfd")
	ErrNoRuntime  = errors.New("the process's runtime has not started yet")
	ErrOldDriver  = errors.New("the driver has no debugger interface")
	ErrGone       = errors.New("the process has ended")
	ErrIncomplete = errors.New("some queues could not be changed")
)

// Request is one ioctl. Buffer is the target of the pointer at PointerAt of Arg.
type Request struct {
	Code      uint32
	Arg       []byte
	PointerAt int
	Buffer    []byte
	File      int // a descriptor named in Arg; -1: none
}

// Transport carries requests to the driver. A debugger's requests must come from the thread that
// traces the target.
type Transport interface {
	Ioctl(r Request) (int, error)
	Close() error
}

// trap is a DBG_TRAP argument.
type trap [32]byte

func newTrap(pid int, op uint32) *trap {
	t := &trap{}
	t.put32(0, uint32(pid))
	t.put32(4, op)
	return t
}

func (t *trap) put32(at int, v uint32) { binary.LittleEndian.PutUint32(t[at:], v) }
func (t *trap) putMask(v uint64)       { binary.LittleEndian.PutUint64(t[8:], v) }
func (t *trap) u32(at int) uint32      { return binary.LittleEndian.Uint32(t[at:]) }
func (t *trap) mask() uint64           { return binary.LittleEndian.Uint64(t[8:]) }

func (t *trap) request() Request {
	return Request{Code: abi.AMDKFD_IOC_DBG_TRAP, Arg: t[:], File: -1}
}

// QueueSnapshot is an entry of GET_QUEUE_SNAPSHOT.
type QueueSnapshot struct {
	Exceptions   uint64 `json:"exceptions"`
	Ring         uint64 `json:"ring"`
	WritePointer uint64 `json:"wptr_address"`
	ReadPointer  uint64 `json:"rptr_address"`
	SaveAddress  uint64 `json:"save_address"`
	ID           uint32 `json:"id"`
	GPUID        uint32 `json:"gpu_id"`
	RingBytes    uint32 `json:"ring_bytes"`
	Type         uint32 `json:"type"` // of CREATE_QUEUE
	SaveBytes    uint32 `json:"save_bytes"`
}

// SDMA reports a copy queue.
func (q QueueSnapshot) SDMA() bool { return q.Type == 1 || q.Type == 3 || q.Type == 4 }

// ParseSnapshot decodes entries that are stride bytes apart.
func ParseSnapshot(b []byte, stride int) ([]QueueSnapshot, error) {
	if stride < abi.QueueSnapshotBytes || len(b)%stride != 0 {
		return nil, fmt.Errorf("entries of %d bytes in %d: %w", stride, len(b), ErrFormat)
	}
	var out []QueueSnapshot
	for ; len(b) > 0; b = b[stride:] {
		var e abi.QueueSnapshotEntry
		if _, err := binary.Decode(b, binary.LittleEndian, &e); err != nil {
			return nil, fmt.Errorf("decode snapshot: %w", err)
		}
		out = append(out, QueueSnapshot{
			Exceptions: e.ExceptionStatus, Ring: e.RingBaseAddress, WritePointer: e.WritePointerAddress, ReadPointer: e.ReadPointerAddress,
			SaveAddress: e.CtxSaveRestoreAddress, ID: e.QueueID, GPUID: e.GPUID, RingBytes: e.RingSize, Type: e.QueueType, SaveBytes: e.CtxSaveRestoreAreaSize,
		})
	}
	return out, nil
}

// QueueResult is the result for one queue in SUSPEND_QUEUES or RESUME_QUEUES.
type QueueResult struct {
	ID      uint32
	Invalid bool // missing, new, or under destruction: unchanged
	Failed  bool // the hardware did not respond
}

// Done reports success.
func (r QueueResult) Done() bool { return !r.Invalid && !r.Failed }

func parseResults(b []byte) []QueueResult {
	var out []QueueResult
	for ; len(b) >= 4; b = b[4:] {
		v := binary.LittleEndian.Uint32(b)
		out = append(out, QueueResult{
			ID:      v &^ (abi.KFD_DBG_QUEUE_ERROR_MASK | abi.KFD_DBG_QUEUE_INVALID_MASK),
			Invalid: v&abi.KFD_DBG_QUEUE_INVALID_MASK != 0, Failed: v&abi.KFD_DBG_QUEUE_ERROR_MASK != 0,
		})
	}
	return out
}

func encodeIDs(ids []uint32) []byte {
	var b []byte
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return b
}

// CheckVersion rejects a driver without the debugger requests.
func CheckVersion(t Transport) error {
	var v [8]byte
	if _, err := t.Ioctl(Request{Code: abi.AMDKFD_IOC_GET_VERSION, Arg: v[:], File: -1}); err != nil {
		return fmt.Errorf("ask the driver's version: %w", err)
	}
	major, minor := binary.LittleEndian.Uint32(v[:]), binary.LittleEndian.Uint32(v[4:])
	if major != abi.Major || minor < abi.MinorDebugger {
		return fmt.Errorf("interface %d.%d, wanted %d.%d: %w", major, minor, abi.Major, abi.MinorDebugger, ErrOldDriver)
	}
	return nil
}

// trapError maps the driver's errno to an error above.
func trapError(what string, err error) error {
	kind := err
	switch {
	case errors.Is(err, unix.ESRCH):
		kind = ErrNoKFD
	case errors.Is(err, unix.EALREADY):
		kind = ErrTraced
	case errors.Is(err, unix.ENOTTY):
		kind = ErrOldDriver
	}
	return fmt.Errorf("%s: %w", what, kind)
}
