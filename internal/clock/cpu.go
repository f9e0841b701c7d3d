// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time of all threads of a process. /proc counts in ticks of 10 ms, which a
// program that sleeps through its kernels may not use in a minute.
func CPUTime(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED, as in clock_getcpuclockid
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|scheduled, &t); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
