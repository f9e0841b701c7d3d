// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"math"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Atomic access to shared memory. Preconditions: offset is aligned and inside m; the
// bounds are checked by indexing.

func load64(m []byte, offset int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&m[offset : offset+8][0])))
}

func load32(m []byte, offset int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&m[offset : offset+4][0])))
}

func store64(m []byte, offset int, value uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&m[offset : offset+8][0])), value)
}

func store32(m []byte, offset int, value uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&m[offset : offset+4][0])), value)
}

// wakeAll wakes all waiters on the word at offset, in any process.
func wakeAll(m []byte, offset int) {
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&m[offset : offset+4][0])), futexWake, math.MaxInt32, 0, 0, 0)
}
