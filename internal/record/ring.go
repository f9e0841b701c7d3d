// SPDX-License-Identifier: Apache-2.0

package record

import "sync/atomic"

// ring is bytes on the way from one goroutine to another. Neither ever waits.
type ring struct {
	buf  []byte // a power of two
	head atomic.Uint64
	tail atomic.Uint64
}

func newRing(size int) *ring {
	n := 1
	for n < size {
		n *= 2
	}
	return &ring{buf: make([]byte, n)}
}

// free is how much push takes at least.
func (r *ring) free() int { return len(r.buf) - int(r.head.Load()-r.tail.Load()) }

// push appends b whole, or says that there is no room.
func (r *ring) push(b []byte) bool {
	if len(b) > r.free() {
		return false
	}
	head := r.head.Load()
	at := int(head) & (len(r.buf) - 1)
	n := copy(r.buf[at:], b)
	copy(r.buf, b[n:])
	r.head.Store(head + uint64(len(b)))
	return true
}

// take appends all there is to b.
func (r *ring) take(b []byte) []byte {
	tail, head := r.tail.Load(), r.head.Load()
	from, to := int(tail)&(len(r.buf)-1), int(head)&(len(r.buf)-1)
	switch {
	case tail == head:
	case from < to:
		b = append(b, r.buf[from:to]...)
	default:
		b = append(append(b, r.buf[from:]...), r.buf[:to]...)
	}
	r.tail.Store(head)
	return b
}
