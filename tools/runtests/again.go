// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// failure is a failed test, or several that only run together.
type failure struct {
	name     string
	from, to time.Time
	again    func(context.Context) ([]failure, error) // runs it alone; no failure: it passed
}

// tries is how often a test may run again.
const tries = 3

// judge decides about failed tests. Most tests start real processes and measure time, so a host that
// withholds the CPUs can fail any of them. Such a failure says nothing about XSched: the test runs again,
// alone, once the host is calm. A failure on a calm host counts, and so does the last of several.
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
			if cause == "" {
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
			f.from, f.to, verdict = next[0].from, next[len(next)-1].to, fmt.Sprintf("it failed %d times", try+1)
		}
		if f.name != "" {
			fmt.Fprintf(out, "FAIL %s: %s\n", f.name, verdict)
			result = errTests
		}
	}
	return result
}
