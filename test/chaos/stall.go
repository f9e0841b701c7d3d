// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"time"

	"xsched/internal/clock"
	"xsched/test/delays"
)

// now is CLOCK_MONOTONIC in ns, the clock of tenants and of the device.
func now() int64 { return int64(clock.Now()) }

// stalls measures how long a runnable thread of normal priority waits for a processor. Bounds
// exclude this time: the campaign judges XSched, not the load of the machine.
type stalls struct{ delays.Record }

// stall is a time in which a program made no progress.
type stall struct{ from, to int64 }

func measureStalls() *stalls {
	s := &stalls{}
	go func() {
		runtime.LockOSThread()
		s.Measure(now, 500*time.Microsecond)
	}()
	return s
}

// in adds up the stalls in [from, to).
func (s *stalls) in(from, to int64) time.Duration {
	sum, _, _ := s.In(from, to)
	return sum
}

// wakes is how many threads must run one after the other until progress shows: a helper thread, the
// device, the program, and the reader of its report. Each waits as long as the measuring one.
const wakes = 4

// elapsed is the time in [from, to) without stalls.
func (s *stalls) elapsed(from, to int64) time.Duration {
	return max(0, time.Duration(to-from)-wakes*s.in(from, to))
}
