// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
)

func (k *Kernel) snapshot(c *call, target *Process) {
	clear, room, stride := c.u64(8), c.u32(24), c.u32(28)
	if stride == 0 {
		c.done(fails(unix.EINVAL))
		return
	}
	size := min(stride, abi.QueueSnapshotBytes)
	n := min(int(room), len(target.queues))
	if n > 0 && (c.fault || len(c.params) < n*int(stride)) {
		c.done(fails(unix.EFAULT))
		return
	}
	i := 0
	for _, q := range slices.Backward(target.queues) { // newest first
		if i == n {
			break
		}
		e, _ := binary.Append(nil, binary.LittleEndian, &abi.QueueSnapshotEntry{
			ExceptionStatus: q.exceptions, RingBaseAddress: q.ring, WritePointerAddress: q.writePointer, ReadPointerAddress: q.readPointer,
			CtxSaveRestoreAddress: q.saveAddress, QueueID: q.id, GPUID: q.gpu, RingSize: q.bytes, QueueType: q.kind, CtxSaveRestoreAreaSize: q.saveBytes,
		})
		q.exceptions &^= clear
		copy(c.params[i*int(stride):], e[:size])
		i++
	}
	c.put32(24, uint32(len(target.queues)))
	c.put32(28, size)
	c.done(0)
}

// deviceSnapshot follows kfd_dbg_trap_device_snapshot (kfd_debug.c), which accepts entries of 0 bytes.
// It fills in gpu_id and PCI address; the rest of an entry is 0.
func (k *Kernel) deviceSnapshot(c *call) {
	room, stride := c.u32(24), c.u32(28)
	if c.u64(16) == 0 {
		c.done(fails(unix.EINVAL))
		return
	}
	size := min(stride, abi.DeviceInfoBytes)
	n := min(int(room), len(k.gpus))
	if n > 0 && (c.fault || len(c.params) < n*int(stride)) {
		c.done(fails(unix.EFAULT))
		return
	}
	for i, g := range k.gpus[:n] {
		var e [abi.DeviceInfoBytes]byte
		binary.LittleEndian.PutUint32(e[56:], g.id)
		binary.LittleEndian.PutUint32(e[64:], location(g.number))
		copy(c.params[i*int(stride):], e[:size])
	}
	c.put32(24, uint32(len(k.gpus)))
	c.put32(28, size)
	c.done(0)
}
