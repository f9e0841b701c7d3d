// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestJudge: a failure counts on a calm host, and if it repeats. Only a disturbed one may run again.
func TestJudge(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		name   string
		cpus   int
		late   time.Duration // of each nap while the test runs
		fails  int           // times
		crash  bool
		calmed bool // the later tries are not disturbed
		runs   int
		passes bool
	}{
		{"calm", 2, 0, 1, false, false, 1, false},
		{"the kernel's own delays", 2, lateLeast / 2, 1, false, false, 1, false},
		{"host not watched", 0, 0, 1, false, false, 1, false},
		{"disturbed once", 2, 50 * time.Millisecond, 1, false, true, 2, true},
		{"small delays all the time", 2, lateLeast, 1, false, true, 2, true},
		{"disturbed, and fails on a calm host too", 2, 50 * time.Millisecond, 9, false, true, 2, false},
		{"disturbed all the time, passes in the end", 2, 50 * time.Millisecond, 3, false, false, 4, true},
		{"disturbed, and crashes", 2, 50 * time.Millisecond, 1, true, true, 1, false},
		{"disturbed all the time", 2, 50 * time.Millisecond, 9, false, false, 4, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, runs := &host{cpus: c.cpus}, 0
				var attempt func(context.Context) ([]failure, error)
				attempt = func(context.Context) ([]failure, error) {
					runs++
					from := time.Now()
					for time.Since(from) < second {
						nap := nap
						if runs == 1 || !c.calmed {
							nap += c.late
						}
						start := time.Now()
						time.Sleep(nap)
						for range c.cpus {
							h.slept(start, time.Now())
						}
					}
					if runs > c.fails {
						return nil, nil
					}
					return []failure{{"pkg.TestX", from, time.Now(), c.crash, attempt}}, nil
				}
				failed, _ := attempt(t.Context())
				var out strings.Builder
				err := h.judge(t.Context(), &out, failed)
				if runs != c.runs || (err == nil) != c.passes || err != nil && !errors.Is(err, errTests) {
					t.Errorf("ran %d times: %v\n%s", runs, err, out.String())
				}
				if again := strings.Count(out.String(), "AGAIN pkg.TestX"); again != c.runs-1 || strings.Contains(out.String(), "FAIL pkg.TestX") == c.passes {
					t.Errorf("said:\n%s", out.String())
				}
			})
		})
	}
}

// TestCalmWaits: a test runs again after the disturbance, or once the budget is spent.
func TestCalmWaits(t *testing.T) {
	for _, c := range []struct {
		disturbed, budget, waits time.Duration
	}{
		{0, time.Minute, calmFor},
		{10 * time.Second, time.Minute, 10*time.Second + calmFor},
		{time.Hour, 20 * time.Second, 20 * time.Second},
		{time.Hour, -1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, start := &host{cpus: 1}, time.Now()
			for at := start; at.Before(start.Add(c.disturbed)); at = at.Add(100 * time.Millisecond) {
				h.slept(at, at.Add(50*time.Millisecond))
			}
			left := h.calm(t.Context(), c.budget)
			waited := time.Since(start)
			if waited.Round(200*time.Millisecond) != c.waits || left != c.budget-waited {
				t.Errorf("disturbed for %v: waited %v of %v, %v left", c.disturbed, waited, c.budget, left)
			}
		})
	}
}

// TestWithheld: only what falls into the time of the test counts, on average over the CPUs.
func TestWithheld(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	h := &host{cpus: 2, delays: []delay{{at(0), at(100)}, {at(50), at(150)}, {at(900), at(1100)}, {at(3000), at(3500)}}}
	average, longest := h.withheld(at(100), at(1000))
	if average != 75*time.Millisecond || longest != 200*time.Millisecond {
		t.Errorf("withheld %v, %v at most", average, longest)
	}
}

func TestOnlyThisTest(t *testing.T) {
	for _, c := range []struct{ args, pkg, test, want string }{
		{"-p 1 -skip ^TestLong xsched/a xsched/b", "xsched/b", "TestX", "-p 1 -skip ^TestLong -run ^TestX$ xsched/b"},
		{"-count 1 -run Histories|Alone ./internal/engine -histories 10", "xsched/internal/engine", "TestH", "-count 1 -run Histories|Alone -run ^TestH$ xsched/internal/engine -histories 10"},
		{"-count 3 -run Killed ./test/e2e/...", "xsched/test/e2e", "", "-count 3 -run Killed xsched/test/e2e"},
	} {
		args := strings.Fields(c.args)
		if got := (goTest{pkg: c.pkg, name: c.test}).only(args); strings.Join(got, " ") != c.want || !slices.Equal(args, strings.Fields(c.args)) {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
}

func TestCrashes(t *testing.T) {
	for text, want := range map[string]bool{
		"panic: runtime error: index out of range [3]\n":                           true,
		"panic: test timed out after 8m0s\n":                                       false,
		"x_test.go:1: wrong\nfatal error: concurrent map writes\n":                 true,
		"==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x1\n":       true,
		"shim/a.c:3:4: runtime error: signed integer overflow\n":                   true,
		"WARNING: ThreadSanitizer: data race (pid=1)\n":                            true,
		"    x_test.go:9: a program with AddressSanitizer ran for 3 s, want 1 s\n": false,
		"signal: killed": false,
		"signal: segmentation fault (core dumped)": true,
	} {
		if crashes.MatchString(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}
