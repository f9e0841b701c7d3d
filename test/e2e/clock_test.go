// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
)

// Limits in these tests exclude the time that other load takes from this machine: a bound of 200 ms
// holds for 200 ms in which a runnable thread really runs. An idle machine excludes nothing.

// nowNS is the clock of tenants, pages and the device's timeline.
func nowNS() int64 {
	return int64(clock.Now())
}

// delay is a period at whose end a thread was ready but did not run.
type delay struct{ from, to int64 }

// delays measures how long a runnable thread waits for a processor, by the overrun of short sleeps.
type delays struct {
	mu   sync.Mutex
	seen []delay // in order of time
}

// machine measures the load while the tests run.
var machine = sync.OnceValue(func() *delays {
	d := &delays{}
	go func() {
		runtime.LockOSThread()
		const step, usual = 2 * time.Millisecond, 500 * time.Microsecond
		for {
			due := nowNS() + int64(step)
			pause := unix.NsecToTimespec(int64(step))
			_ = unix.Nanosleep(&pause, nil)
			if now := nowNS(); now > due+int64(usual) {
				d.mu.Lock()
				d.seen = append(d.seen, delay{due, now})
				d.mu.Unlock()
			}
		}
	}()
	return d
})

// in adds up the delays in [from, to).
func (d *delays) in(from, to int64) (sum time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := len(d.seen) - 1; i >= 0 && d.seen[i].to > from; i-- {
		sum += time.Duration(max(0, min(d.seen[i].to, to)-max(d.seen[i].from, from)))
	}
	return sum
}

// count is the number of delays in [from, to).
func (d *delays) count(from, to int64) (n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := len(d.seen) - 1; i >= 0 && d.seen[i].to > from; i-- {
		if d.seen[i].from < to {
			n++
		}
	}
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

func TestDelaysAreExcluded(t *testing.T) {
	d := &delays{seen: []delay{{100, 200}, {300, 400}, {900, 1000}}}
	for _, c := range []struct{ from, to, want, count int64 }{
		{0, 50, 0, 0}, {0, 1000, 300, 3}, {150, 350, 100, 2}, {400, 900, 0, 0}, {950, 2000, 50, 1},
	} {
		if got, n := d.in(c.from, c.to), d.count(c.from, c.to); int64(got) != c.want || int64(n) != c.count {
			t.Errorf("[%d, %d): %d in %d, want %d in %d", c.from, c.to, got, n, c.want, c.count)
		}
	}
}
