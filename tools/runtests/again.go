// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"
)

// failure is a failed test, or several that only run together.
type failure struct {
	name     string
	from, to time.Time
	crashed  bool
	again    func(context.Context) ([]failure, error) // runs it alone; no failure: it passed
}

// crashes finds what no delay excuses: a crash, a data race, an error that a sanitizer found.
var crashes = regexp.MustCompile(`(?m)^(panic: runtime error|fatal error:|WARNING: DATA RACE|SIG[A-Z]+: )|(Address|Thread|Leak)Sanitizer:|: runtime error: |signal: (segmentation fault|aborted|bus error|illegal instruction)`)

// tries is how often a test may run again.
const tries = 3

// judge decides about failed tests. Most tests start real processes and measure time, so a host that
// withholds the CPUs can fail any of them. Such a failure says nothing about XSched: the test runs again,
// alone, once the host is calm. A failure on a calm host counts, and so do a crash and the last of several.
func (h *host) judge(ctx context.Context, out io.Writer, failed []failure) error {
	budget := calmBudget
	var result error
	for _, f := range failed {
		verdict := "the host withheld no CPU"
		if h.cpus == 0 {
			verdict = "no real-time priority, so the host could not be watched"
		}
		for try := 1; try <= tries && ctx.Err() == nil; try++ {
			cause := h.disturbed(f.from, f.to)
			if f.crashed {
				verdict = "it crashed"
			}
			if cause == "" || f.crashed {
				break
			}
			budget = h.calm(ctx, budget)
			fmt.Fprintf(out, "AGAIN %s (%d of %d): %s\n", f.name, try, tries, cause)
			next, err := f.again(ctx)
			if err == nil && len(next) == 0 {
				f.name = ""
				break
			}
			if err != nil {
				return errors.Join(result, err)
			}
			f.from, f.to, f.crashed = next[0].from, next[0].to, next[0].crashed
			verdict = fmt.Sprintf("it failed %d times", try+1)
		}
		if f.name != "" {
			fmt.Fprintf(out, "FAIL %s: %s\n", f.name, verdict)
			result = errTests
		}
	}
	return result
}
