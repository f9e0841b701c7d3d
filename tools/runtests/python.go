// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func runPython(ctx context.Context, out io.Writer, skips *skips, args []string) (failed []failure, err error) {
	if _, err := exec.LookPath("python3"); err != nil {
		skips.add("all", "no python3")
		return nil, nil
	}
	for _, dir := range args {
		start, top, ok := strings.Cut(dir, ":")
		if !ok {
			top = start
		}
		cmd := exec.CommandContext(ctx, "python3", "-B", "-m", "unittest", "discover", "-v", "-s", start, "-t", top)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+top)
		from := time.Now()
		text, err := cmd.CombinedOutput()
		bad := failure{start, from, time.Now(), crashed(string(text)), func(ctx context.Context) ([]failure, error) {
			return runPython(ctx, out, skips, []string{dir})
		}}
		summary, wrong := readUnittest(string(text), skips)
		_, exited := errors.AsType[*exec.ExitError](err)
		switch {
		case exited:
			failed = append(failed, bad)
			fmt.Fprintf(out, "%s\nFAIL %s\n", text, start)
		case err != nil:
			return nil, err
		case wrong != nil:
			failed = append(failed, bad)
			fmt.Fprintf(out, "%s\nFAIL %s: %v\n", text, start, wrong)
		default:
			fmt.Fprintf(out, "ok   %s: %s\n", start, summary)
		}
	}
	return failed, nil
}

var (
	ran         = regexp.MustCompile(`(?m)^Ran (\d+) tests? in .*$`)
	skipCount   = regexp.MustCompile(`(?m)^(?:OK|FAILED) \(.*\bskipped=(\d+)`)
	startOfTest = regexp.MustCompile(`^(\w+) \(([\w.]+)\)`)
	endOfSkip   = regexp.MustCompile(`\.\.\. skipped (.*)$`)
)

// readUnittest finds the skips in the output of `python3 -m unittest -v`, and its summary. It fails
// if no test ran, or if unittest counts other skips than were found.
func readUnittest(text string, skips *skips) (summary string, err error) {
	name, found := "", 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := startOfTest.FindStringSubmatch(line); m != nil {
			name = m[2]
			if !strings.HasSuffix(name, "."+m[1]) { // before Python 3.11
				name += "." + m[1]
			}
		}
		if m := endOfSkip.FindStringSubmatch(line); m != nil {
			skips.add(name, strings.Trim(m[1], `'"`))
			found++
		}
	}
	m := ran.FindStringSubmatch(text)
	if m == nil || m[1] == "0" {
		return "", errors.New("no test ran")
	}
	counted := 0
	if m := skipCount.FindStringSubmatch(text); m != nil {
		counted, _ = strconv.Atoi(m[1])
	}
	if counted != found {
		return "", fmt.Errorf("unittest skipped %d tests, but its output names %d", counted, found)
	}
	return m[0], nil
}
