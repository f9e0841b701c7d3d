// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
)

// now is CLOCK_MONOTONIC in ns, the clock of tenants and of the device.
func now() int64 { return int64(clock.Now()) }

// stalls measures how long a runnable thread of normal priority waits for a processor. Bounds
// exclude this time: the campaign judges XSched, not the load of the machine.
type stalls struct {
	mu    sync.Mutex
	seen  []stall // in order of time
	total int64
}

type stall struct{ from, to int64 }

const (
	stallStep  = 2 * time.Millisecond
	stallUsual = 500 * time.Microsecond
	stallKept  = 1 << 16
)

func measureStalls() *stalls {
	s := &stalls{}
	go func() {
		runtime.LockOSThread()
		for {
			due := now() + int64(stallStep)
			pause := unix.NsecToTimespec(int64(stallStep))
			_ = unix.Nanosleep(&pause, nil)
			if at := now(); at > due+int64(stallUsual) {
				s.add(due, at)
			}
		}
	}()
	return s
}

func (s *stalls) add(from, to int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) >= stallKept {
		s.seen = append(s.seen[:0], s.seen[stallKept/2:]...)
	}
	s.seen = append(s.seen, stall{from, to})
	s.total += to - from
}

// in adds up the stalls in [from, to).
func (s *stalls) in(from, to int64) (sum time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.seen) - 1; i >= 0 && s.seen[i].to > from; i-- {
		sum += time.Duration(max(0, min(s.seen[i].to, to)-max(s.seen[i].from, from)))
	}
	return sum
}

// wakes is how many threads must run one after the other until progress shows: a helper thread, the
// device, the program, and the reader of its report. Each waits as long as the measuring one.
const wakes = 4

// elapsed is the time in [from, to) without stalls.
func (s *stalls) elapsed(from, to int64) time.Duration {
	return max(0, time.Duration(to-from)-wakes*s.in(from, to))
}
