// SPDX-License-Identifier: Apache-2.0

// Package clock reads CLOCK_MONOTONIC, the clock that applications write into their pages.
package clock

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
	"xsched/internal/planted"
)

// Now returns CLOCK_MONOTONIC without a system call. The Go runtime's monotonic clock is the
// same clock with another origin.
func Now() model.Time {
	o := calibrate()
	if planted.Clock {
		return o.at + model.Time(time.Now().Round(0).Sub(o.base.Round(0)))
	}
	return o.at + model.Time(time.Since(o.base))
}

// origin is one instant on both clocks.
type origin struct {
	base time.Time
	at   model.Time
}

// calibrate keeps the closest of a few readings, so that a preemption between the two clocks
// does not become a constant error.
var calibrate = sync.OnceValue(func() origin {
	var o origin
	best := time.Hour
	for range 8 {
		before := time.Now()
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			continue
		}
		if took := time.Since(before); took < best {
			best = took
			o = origin{before.Add(took / 2), model.Time(ts.Nano())}
		}
	}
	return o
})
