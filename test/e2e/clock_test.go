// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/test/delays"
)

// Limits in these tests exclude the time that other load takes from this machine: a bound of 200 ms
// holds for 200 ms in which a runnable thread really runs. An idle machine excludes nothing.

// nowNS is the clock of tenants, pages and the device's timeline.
func nowNS() int64 {
	return int64(clock.Now())
}

// machine measures the load while the tests run.
var machine = sync.OnceValue(func() *otherLoad {
	l := &otherLoad{}
	go func() {
		runtime.LockOSThread()
		l.Measure(nowNS, 500*time.Microsecond)
	}()
	return l
})

// otherLoad is what delays a thread of normal priority.
type otherLoad struct{ delays.Record }

// in adds up the delays in [from, to).
func (l *otherLoad) in(from, to int64) time.Duration {
	sum, _, _ := l.In(from, to)
	return sum
}

// count is the number of delays in [from, to).
func (l *otherLoad) count(from, to int64) uint64 {
	_, _, n := l.In(from, to)
	return n
}

// wakes is how many threads run one after the other until an effect shows: a helper thread, the daemon, the program,
// and the test that looks. Each waits for a processor as long as the measuring thread.
const wakes = 4

// elapsed is the time in [from, to) without delays by other load.
func elapsed(from, to int64) time.Duration {
	return max(0, time.Duration(to-from)-wakes*machine().in(from, to))
}

// disturbed is the part of [from, to) in which other load may have delayed an effect.
func disturbed(from, to int64) float64 {
	return 1 - elapsed(from, to).Seconds()/time.Duration(to-from).Seconds()
}

// calmPart is the part of a measurement that other load may disturb.
const calmPart = 0.05

// calm repeats a measurement that other load disturbed, up to three rounds. It returns the last round's disturbed part
// and error.
func calm(t *testing.T, measure func() error) (load float64, err error) {
	t.Helper()
	for round := 1; round <= 3; round++ {
		from := nowNS()
		err = measure()
		load = disturbed(from, nowNS())
		t.Logf("round %d: other load disturbed %.1f %% of the time", round, 100*load)
		if load <= calmPart {
			break
		}
	}
	return load, err
}

// soon is the limit for effects that nobody promises within a time, such as the release of a descriptor. It only ends
// a test of a daemon that never does it.
const soon = 30 * time.Second

// eventually polls until ok. It fails the test after the limit, or when the machine is hopelessly slow.
func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	const hopeless = time.Minute
	start := nowNS()
	for !ok() {
		now := nowNS()
		if elapsed(start, now) > limit || time.Duration(now-start) > limit+hopeless {
			t.Fatalf("not within %v (%v with delays by other load): %s", limit, time.Duration(now-start).Round(time.Millisecond), what)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return elapsed(start, nowNS())
}
