// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Measure measures the CPU time of a goroutine until took is called once. The goroutine stays on its
// thread meanwhile. Unlike elapsed time, CPU time does not include waits for the client, the driver or a
// CPU that others use.
func Measure() (took func() time.Duration) {
	runtime.LockOSThread()
	began := threadTime()
	return func() time.Duration {
		defer runtime.UnlockOSThread()
		return threadTime() - began
	}
}

func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
