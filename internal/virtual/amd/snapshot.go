// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

func (k *Kernel) snapshot(c *call, target *Process) {
	clear, room, stride := c.u64(8), c.u32(24), c.u32(28)
	if stride == 0 {
		c.done(fails(unix.EINVAL))
		return
	}
	size := min(stride, snapshotEntry)
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
		var e [snapshotEntry]byte
		put32 := func(at int, v uint32) { binary.LittleEndian.PutUint32(e[at:], v) }
		put64 := func(at int, v uint64) { binary.LittleEndian.PutUint64(e[at:], v) }
		put64(0, q.exceptions)
		put64(8, q.ring)
		put64(16, q.writePointer)
		put64(24, q.readPointer)
		put64(32, q.saveAddress)
		put32(40, q.id)
		put32(44, q.gpu)
		put32(48, q.bytes)
		put32(52, q.kind)
		put32(56, q.saveBytes)
		q.exceptions &^= clear
		copy(c.params[i*int(stride):], e[:size])
		i++
	}
	c.put32(24, uint32(len(target.queues)))
	c.put32(28, size)
	c.done(0)
}

// deviceSnapshot shows gpu_id and PCI address only; the rest of an entry is 0.
func (k *Kernel) deviceSnapshot(c *call) {
	room, stride := c.u32(24), c.u32(28)
	if stride == 0 {
		c.done(fails(unix.EINVAL))
		return
	}
	size := min(stride, deviceEntry)
	n := min(int(room), len(k.gpus))
	if n > 0 && (c.fault || len(c.params) < n*int(stride)) {
		c.done(fails(unix.EFAULT))
		return
	}
	for i, g := range k.gpus[:n] {
		var e [deviceEntry]byte
		binary.LittleEndian.PutUint32(e[56:], g.id)
		binary.LittleEndian.PutUint32(e[64:], location(g.number))
		copy(c.params[i*int(stride):], e[:size])
	}
	c.put32(24, uint32(len(k.gpus)))
	c.put32(28, size)
	c.done(0)
}
