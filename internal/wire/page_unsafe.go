// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Accessors for words of a shared page. Offsets come from generated constants and bounded indices,
// and slicing checks them again. Accesses are atomic, because the peer writes concurrently.

func load32(mem []byte, off int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&mem[off : off+4 : off+4][0])))
}

func load64(mem []byte, off int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&mem[off : off+8 : off+8][0])))
}

func store32(mem []byte, off int, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&mem[off : off+4 : off+4][0])), v)
}

func store64(mem []byte, off int, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[off : off+8 : off+8][0])), v)
}

// futexWake wakes all waiters on the word, in any process.
func futexWake(mem []byte, off int) {
	const futexWakeOp, all = 1, 1<<31 - 1
	addr := uintptr(unsafe.Pointer(&mem[off : off+4 : off+4][0]))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, addr, futexWakeOp, all, 0, 0, 0)
}
