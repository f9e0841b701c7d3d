// SPDX-License-Identifier: Apache-2.0

// Command runtests runs one test suite and reports every skipped test.
//
//	runtests go [flags and packages of go test]
//	runtests c [-variants plain,asan,tsan] [-jobs N] test...
//	runtests python start-directory[:top-level-directory]...
//
// With XSCHED_CI=1 a skipped test fails the run, unless the file test/skips.txt allows it.
// A test that fails while the host withholds the CPUs runs again; see judge.
// Run the command in the root of the repository.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

const skipsFile = "test/skips.txt"

// runner is one suite: it prints and returns failures, and records skips.
type runner func(ctx context.Context, out io.Writer, skips *skips, args []string) ([]failure, error)

var suites = map[string]runner{"go": runGo, "c": runC, "python": runPython}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "runtests: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) == 0 || suites[args[0]] == nil {
		return errors.New("usage: runtests go|c|python arguments")
	}
	text, err := os.ReadFile(skipsFile)
	if err != nil {
		return fmt.Errorf("read the list of allowed skips: %w", err)
	}
	skips, err := parseSkips(args[0], string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", skipsFile, err)
	}
	host := watch()
	failed, err := suites[args[0]](ctx, out, skips, args[1:])
	if err == nil {
		err = host.judge(ctx, out, failed)
	}
	return errors.Join(err, skips.report(out, os.Getenv("XSCHED_CI") == "1"))
}
