// SPDX-License-Identifier: Apache-2.0

// Package delays measures how long a runnable thread waits for a CPU, by the overrun of short sleeps. Tests that
// measure time use it to distinguish a slow program from a slow machine.
package delays

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const step = 2 * time.Millisecond

// Record holds the delays of one thread. Times are in ns, of any monotonic clock.
type Record struct {
	mu   sync.Mutex
	seen []delay // in order of time
}

// delay is a period at whose end a thread was ready but did not run.
type delay struct{ from, to int64 }

// Measure records delays above the usual one for ever. The caller locks its goroutine to a thread. The thread's
// priority decides which other load counts.
func (r *Record) Measure(now func() int64, usual time.Duration) {
	for {
		due := now() + int64(step)
		pause := unix.NsecToTimespec(int64(step))
		_ = unix.Nanosleep(&pause, nil)
		if at := now(); at > due+int64(usual) {
			r.Add(due, at)
		}
	}
}

// Add records a delay after those before.
func (r *Record) Add(from, to int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, delay{from, to})
}

// In returns the sum of the delays in [from, to), the longest of them and their number.
func (r *Record) In(from, to int64) (sum, longest time.Duration, n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.seen) - 1; i >= 0 && r.seen[i].to > from; i-- {
		if r.seen[i].from < to {
			part := time.Duration(min(r.seen[i].to, to) - max(r.seen[i].from, from))
			sum, longest, n = sum+part, max(longest, part), n+1
		}
	}
	return sum, longest, n
}
