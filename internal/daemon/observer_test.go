// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"testing"
	"time"
)

// Idle noise is not work; a program that sleeps through its kernels works.
func TestCPUMeter(t *testing.T) {
	const look = 50 * time.Millisecond
	for _, test := range []struct {
		name   string
		used   time.Duration // per wake-up
		every  time.Duration
		first  time.Duration // latest time to be seen working; 0: never
		always bool          // and at every later look with CPU use
	}{
		{"sleeps", 0, time.Hour, 0, false},
		{"PyTorch at rest", 92 * time.Microsecond, 100 * time.Millisecond, 0, false},
		{"a timer a second", 80 * time.Microsecond, time.Second, 0, false},
		{"spins", look, look, look, true},
		{"launches and sleeps, 20 ms", 50 * time.Microsecond, 20 * time.Millisecond, 250 * time.Millisecond, true},
		{"launches and sleeps, 100 ms", 160 * time.Microsecond, 100 * time.Millisecond, time.Second, true},
		{"a request a second", 5 * time.Millisecond, time.Second, time.Second, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var m cpuMeter
			start := time.Unix(1000, 0)
			cpu, seen := time.Duration(0), time.Duration(0)
			m.worked(start, cpu, nil)
			for at := look; at < 20*time.Second; at += look {
				used := time.Duration(at/test.every-(at-look)/test.every) * test.used
				cpu += used
				switch worked := m.worked(start.Add(at), cpu, nil); {
				case worked && seen == 0:
					seen = at
				case worked && used == 0:
					t.Fatalf("at %v: works without CPU time", at)
				case !worked && used > 0 && seen > 0 && test.always:
					t.Fatalf("at %v: does not work any more", at)
				}
			}
			if (seen > 0) != (test.first > 0) || seen > test.first {
				t.Errorf("seen to work at %v, want %v", seen, test.first)
			}
		})
	}
}

func TestCPUMeterSeesNothing(t *testing.T) {
	var m cpuMeter
	if !m.worked(time.Unix(1000, 0), 0, errors.New("no such clock")) {
		t.Error("an unreadable process counts as idle")
	}
}
