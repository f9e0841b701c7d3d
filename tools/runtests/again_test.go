// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"xsched/test/delays"
)

// watched is a host with so many CPUs that nothing has delayed.
func watched(cpus int) *host {
	h := &host{start: time.Now()}
	for range cpus {
		h.cpus = append(h.cpus, &delays.Record{})
	}
	return h
}

// TestJudge: a failure counts on a calm host, and if it repeats. Only a disturbed one may run again.
func TestJudge(t *testing.T) {
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
		{"small delays, 2 % of the time", 2, 40 * time.Microsecond, 1, false, false, 1, false},
		{"host not watched", 0, 0, 1, false, false, 1, false},
		{"disturbed once", 2, 50 * time.Millisecond, 1, false, true, 2, true},
		{"small delays, a third of the time", 2, time.Millisecond, 1, false, true, 2, true},
		{"disturbed, and fails on a calm host too", 2, 50 * time.Millisecond, 9, false, true, 2, false},
		{"disturbed all the time, passes in the end", 2, 50 * time.Millisecond, 3, false, false, 4, true},
		{"disturbed, and crashes", 2, 50 * time.Millisecond, 1, true, true, 1, false},
		{"disturbed all the time", 2, 50 * time.Millisecond, 9, false, false, 4, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, runs := watched(c.cpus), 0
				var attempt func(context.Context) ([]failure, error)
				attempt = func(context.Context) ([]failure, error) {
					runs++
					from := time.Now()
					for time.Since(from) < time.Second {
						time.Sleep(2 * time.Millisecond)
						if due := h.now(); c.late > 0 && (runs == 1 || !c.calmed) {
							time.Sleep(c.late)
							for _, cpu := range h.cpus {
								cpu.Add(due, h.now())
							}
						}
					}
					if runs > c.fails {
						return nil, nil
					}
					return []failure{{"pkg.TestX", from, time.Now(), c.crash, attempt}}, nil
				}
				failed, _ := attempt(t.Context())
				list := filepath.Join(t.TempDir(), "repeated")
				t.Setenv("XSCHED_REPEATED", list)
				var out strings.Builder
				err := h.judge(t.Context(), &out, failed)
				if runs != c.runs || (err == nil) != c.passes || err != nil && !strings.Contains(err.Error(), "1 tests failed: pkg.TestX") {
					t.Errorf("ran %d times: %v\n%s", runs, err, out.String())
				}
				if again := strings.Count(out.String(), "AGAIN pkg.TestX"); again != c.runs-1 || strings.Contains(out.String(), "FAIL pkg.TestX") == c.passes {
					t.Errorf("said:\n%s", out.String())
				}
				if kept, _ := os.ReadFile(list); strings.Count(string(kept), "AGAIN pkg.TestX") != c.runs-1 {
					t.Errorf("%d runs, recorded:\n%s", c.runs, kept)
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
			h := watched(1)
			for at := time.Duration(0); at < c.disturbed; at += 100 * time.Millisecond {
				h.cpus[0].Add(int64(at), int64(at+50*time.Millisecond))
			}
			left := h.calm(t.Context(), c.budget)
			waited := time.Since(h.start)
			if waited.Round(200*time.Millisecond) != c.waits || left != c.budget-waited {
				t.Errorf("disturbed for %v: waited %v of %v, %v left", c.disturbed, waited, c.budget, left)
			}
		})
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
		"panic: runtime error: index out of range [3]\n":                                              true,
		"panic: what a test panics with\n":                                                            true,
		"    harness_test.go:148: log of daemon and device:\n        panic: runtime error: nil map\n": true,
		"*** Test killed with quit: ran too long (9m0s).\nSIGQUIT: quit\n":                            false,
		"panic: test timed out after 8m0s\n":                                                          false,
		"x_test.go:1: wrong\nfatal error: concurrent map writes\n":                                    true,
		"==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x1\n":                          true,
		"shim/a.c:3:4: runtime error: signed integer overflow\n":                                      true,
		"WARNING: ThreadSanitizer: data race (pid=1)\n":                                               true,
		"    x_test.go:9: a program with AddressSanitizer ran for 3 s, want 1 s\n":                    false,
		"    x_test.go:7: wrong result: checksum 1, want 2\n":                                         true,
		"signal: killed": false,
		"signal: segmentation fault (core dumped)": true,
	} {
		if crashed(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

// TestPackageAgain: of a package that ran again as a whole, every failed test is judged by itself.
func TestPackageAgain(t *testing.T) {
	t.Setenv("XSCHED_REPEATED", "") // CI's list is not of this test
	synctest.Test(t, func(t *testing.T) {
		h, ran := watched(1), ""
		h.cpus[0].Add(0, int64(time.Second))
		during := func(name string, next ...failure) failure {
			return failure{name, h.start, h.start.Add(time.Second), false, func(context.Context) ([]failure, error) {
				ran += " " + name
				return next, nil
			}}
		}
		calm := failure{name: "pkg.TestCalm", from: h.start.Add(2 * time.Second), to: h.start.Add(3 * time.Second)}
		err := h.judge(t.Context(), io.Discard, []failure{during("pkg", during("pkg.TestSpoiled"), calm)})
		if ran != " pkg pkg.TestSpoiled" || err == nil || err.Error() != "1 tests failed: pkg.TestCalm" {
			t.Errorf("ran again:%s; %v", ran, err)
		}
	})
}
