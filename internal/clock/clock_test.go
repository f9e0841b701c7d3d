// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

func TestNowIsTheKernelsClock(t *testing.T) {
	kernel := func() model.Time {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		return model.Time(ts.Nano())
	}
	Now()
	const tolerance = 100_000 // half of a calibration that was never undisturbed
	for range 1000 {
		before := kernel()
		now := Now()
		after := kernel()
		if now < before-tolerance || now > after+tolerance {
			t.Fatalf("Now = %d, the kernel says %d to %d", now, before, after)
		}
	}
}
