// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// raisePriority raises the scheduling priority of the calling thread as far as permitted, and
// returns the result. New threads and processes do not inherit it.
func raisePriority() string {
	const resetOnFork = 1 // SCHED_FLAG_RESET_ON_FORK
	fifo := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: resetOnFork, Priority: 1}
	err := unix.SchedSetAttr(0, &fifo, 0)
	if err == nil {
		return "SCHED_FIFO 1"
	}
	nice := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Flags: resetOnFork, Nice: -10}
	if unix.SchedSetAttr(0, &nice, 0) == nil {
		return "nice -10"
	}
	return fmt.Sprintf("normal (%v)", err)
}
