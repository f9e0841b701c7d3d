// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	cLimit   = 2 * time.Minute
	exitSkip = 77 // the convention of automake
)

// sanitizers holds default options of the sanitizers; the caller's take precedence.
var sanitizers = map[string]string{
	"ASAN_OPTIONS":  "detect_leaks=0:abort_on_error=0:exitcode=99",
	"UBSAN_OPTIONS": "print_stacktrace=1",
	"TSAN_OPTIONS":  "exitcode=98:halt_on_error=0",
}

// cTest is one program in build/test.
type cTest struct{ variant, name string }

func (c cTest) String() string { return c.variant + "/" + c.name }

func runC(ctx context.Context, out io.Writer, skips *skips, args []string) ([]failure, error) {
	flags := flag.NewFlagSet("runtests c", flag.ContinueOnError)
	variants := flags.String("variants", "plain,asan,tsan", "builds to run")
	jobs := flags.Int("jobs", 1, "tests to run at the same time")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	for name, value := range sanitizers {
		if os.Getenv(name) == "" {
			if err := os.Setenv(name, value); err != nil {
				return nil, err
			}
		}
	}
	var tests []cTest
	for variant := range strings.SplitSeq(*variants, ",") {
		for _, name := range flags.Args() {
			tests = append(tests, cTest{variant, name})
		}
	}
	var (
		mu     sync.Mutex // guards out, skips and failed
		failed []failure
		wait   sync.WaitGroup
	)
	free := make(chan struct{}, max(1, *jobs))
	for _, test := range tests {
		free <- struct{}{}
		wait.Go(func() {
			defer func() { <-free }()
			start := time.Now()
			text, err := runCTest(ctx, test)
			end := time.Now()
			mu.Lock()
			defer mu.Unlock()
			for _, reason := range skipped(text, err) {
				skips.add(test.String(), reason)
			}
			if exit, ok := errors.AsType[*exec.ExitError](err); err == nil || ok && exit.ExitCode() == exitSkip {
				fmt.Fprintf(out, "ok   %s %.1fs\n", test, end.Sub(start).Seconds())
				return
			}
			failed = append(failed, failure{test.String(), start, end, crashed(text + err.Error()), func(ctx context.Context) ([]failure, error) {
				return runC(ctx, out, skips, []string{"-variants", test.variant, test.name})
			}})
			fmt.Fprintf(out, "FAIL %s: %v\n%s", test, err, tail(text, 4000))
		})
	}
	wait.Wait()
	fmt.Fprintf(out, "C tests: %d of %d passed\n", len(tests)-len(failed), len(tests))
	return failed, nil
}

func runCTest(ctx context.Context, test cTest) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cLimit)
	defer cancel()
	argv := []string{filepath.Join("build", "test", test.variant, test.name)}
	if test.variant == "tsan" && exec.Command("setarch", "-R", "true").Run() == nil {
		// TSan cannot place its shadow memory where the kernel randomizes more than 28 bits.
		argv = append([]string{"setarch", "-R"}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = 5 * time.Second
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("killed after %v: %w", cLimit, ctx.Err())
	}
	if log := argv[len(argv)-1] + ".log"; os.WriteFile(log, text, 0o644) != nil {
		return string(text), errors.Join(err, fmt.Errorf("%s was not written", log))
	}
	return string(text), err
}

// skipped finds the reasons of a test that exits with 77, or that prints "skip...: reason" and continues.
func skipped(text string, err error) (reasons []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "skip") {
			reasons = append(reasons, strings.TrimSpace(line))
		}
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if ok && exit.ExitCode() == exitSkip && len(reasons) == 0 {
		reasons = []string{strings.TrimSpace(tail(text, 200))}
	}
	return reasons
}

// tail returns the last lines of text, up to about n bytes.
func tail(text string, size int) string {
	if len(text) <= size {
		return text
	}
	cut := []byte(text[len(text)-size:])
	if at := bytes.IndexByte(cut, '\n'); at >= 0 {
		cut = cut[at+1:]
	}
	return string(cut)
}
