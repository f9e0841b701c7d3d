// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// failure is a failed test, or several that only run together.
type failure struct {
	name     string
	from, to time.Time // zero: it did not run
	crashed  bool
	again    func(context.Context) ([]failure, error) // runs it alone; no failure: it passed
}

// tries is how often a test may run again.
const tries = 3

var (
	timeout = regexp.MustCompile(`panic: test timed out`)
	crashes = regexp.MustCompile(`(?m)^\s*(panic: |fatal error: |WARNING: DATA RACE|SIG(SEGV|BUS|ILL|FPE|ABRT)\b)` +
		`|(Address|Thread|Leak)Sanitizer: |: runtime error: |signal: (segmentation fault|bus error|illegal instruction|floating point exception|aborted)`)
)

// crashed finds what no delay excuses: a crash, a data race, an error that a sanitizer found.
func crashed(text string) bool { return crashes.MatchString(timeout.ReplaceAllString(text, "")) }

// judge decides about failed tests. Most tests start real processes and measure time, so a host that
// withholds the CPUs can fail any of them. Such a failure says nothing about XSched: the test runs again,
// alone, once the host is calm. A failure on a calm host counts, and so do a crash and the last of several.
func (h *host) judge(ctx context.Context, out io.Writer, failed []failure) error {
	budget := calmBudget
	var lost []string
	var decide func(failed []failure, try int) error
	decide = func(failed []failure, try int) error {
		for _, f := range failed {
			cause, verdict := h.excuse(f)
			if cause != "" && try > tries {
				verdict = fmt.Sprintf("it failed %d times", try)
			}
			if verdict != "" {
				fmt.Fprintf(out, "FAIL %s: %s\n", f.name, verdict)
				lost = append(lost, f.name)
				continue
			}
			if budget = h.calm(ctx, budget); ctx.Err() != nil {
				return ctx.Err()
			}
			fmt.Fprintf(out, "AGAIN %s (%d of %d): %s\n", f.name, try, tries, cause)
			next, err := f.again(ctx)
			if err == nil {
				err = decide(next, try+1)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := decide(failed, 1); err != nil {
		return err
	}
	if len(lost) > 0 {
		return fmt.Errorf("%d tests failed: %s", len(lost), strings.Join(lost, " "))
	}
	return nil
}

// excuse says what the host did to a test, or else why its failure counts.
func (h *host) excuse(f failure) (cause, verdict string) {
	switch {
	case f.crashed:
		return "", "it crashed"
	case f.from.IsZero():
		return "", "it did not run"
	case len(h.cpus) == 0:
		return "", "the host was not watched, because real-time priority is not allowed"
	}
	if cause = h.disturbed(int64(f.from.Sub(h.start)), int64(f.to.Sub(h.start))); cause == "" {
		verdict = "the host withheld no CPU"
	}
	return cause, verdict
}
