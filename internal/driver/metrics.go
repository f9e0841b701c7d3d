// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync/atomic"

	"xsched/internal/model"
)

// Metrics counts hardware operations of all targets.
type Metrics struct {
	Suspends, Resumes, TimesliceSets, GateHolds, Undone, Errors atomic.Uint64
	// Shared counts operations that another process's call carried out, Split those that were repeated
	// alone because a shared call failed.
	Shared, Split atomic.Uint64
	// TurnedOff counts how often failing resumes turned scheduling off for a process.
	TurnedOff atomic.Uint64

	SuspendTime, ResumeTime Histogram
	// DriverSuspendTime and DriverResumeTime exclude everything but the driver, where the executing
	// process reports it.
	DriverSuspendTime, DriverResumeTime Histogram
	// PreemptTime measures from the decision to the end of the suspend operation, by level. Level 1
	// has no operation.
	PreemptTime [model.LevelInterrupt + 1]Histogram
}
