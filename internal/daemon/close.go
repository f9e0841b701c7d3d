// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"time"

	"xsched/internal/health"
)

// closeTime limits Close. Its steps take milliseconds, or wait for something that hangs: a driver, the disk,
// the guardian, the engine loop. The programs resume themselves 100 ms after the last heartbeat. With
// the last lines of the log, a daemon then ends within 2 s of its signal.
const closeTime = 1200 * time.Millisecond

// Close resumes every program, restores every timeslice and releases the directory. What hangs is left to
// the end of the process. The next daemon does not wait for it: the lock is released in any case.
func (d *Daemon) Close() {
	steps := d.shutdown
	d.shutdown = nil
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, f := range slices.Backward(steps) {
			f()
		}
	}()
	select {
	case <-done:
		return
	case <-time.After(d.closeTime):
	}
	d.log.Error("a part of the daemon hangs and is given up; programs resume themselves", "waited", d.closeTime, "parts", late(d.health.States()))
	for _, l := range d.listeners {
		l.Refuse()
	}
	d.lock.Release()
}

// late names the parts that work on something.
func late(all []health.State) (names []string) {
	for i := range all {
		if all[i].Late() {
			names = append(names, all[i].Name)
		}
	}
	return names
}
