// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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

// crashed finds what no delay excuses: a crash, a data race, an error that a sanitizer found, and the
// words with which a test reports a wrong checksum or other wrong data.
func crashed(text string) bool {
	return crashes.MatchString(timeout.ReplaceAllString(text, "")) || strings.Contains(text, "wrong result")
}

// remember appends a line to the list of repeated tests, which CI prints at its end.
func remember(line string) error {
	path := os.Getenv("XSCHED_REPEATED")
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("record a repeated test: %w", err)
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

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
			line := fmt.Sprintf("AGAIN %s (%d of %d): %s\n", f.name, try, tries, cause)
			fmt.Fprint(out, line)
			if err := remember(line); err != nil {
				return err
			}
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
		return "", "it crashed, or its results were wrong"
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
