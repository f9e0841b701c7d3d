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
	"strings"
)

func runPython(ctx context.Context, out io.Writer, skips *skips, args []string) error {
	if _, err := exec.LookPath("python3"); err != nil {
		skips.add("all", "no python3")
		return nil
	}
	failed := false
	for _, dir := range args {
		start, top, ok := strings.Cut(dir, ":")
		if !ok {
			top = start
		}
		cmd := exec.CommandContext(ctx, "python3", "-B", "-m", "unittest", "discover", "-v", "-s", start, "-t", top)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+top)
		text, err := cmd.CombinedOutput()
		readUnittest(string(text), skips)
		if _, exited := errors.AsType[*exec.ExitError](err); exited {
			failed = true
			fmt.Fprintf(out, "%s\nFAIL %s\n", text, start)
		} else if err != nil {
			return err
		} else {
			fmt.Fprintf(out, "ok   %s: %s\n", start, ran.FindString(string(text)))
		}
	}
	if failed {
		return errTests
	}
	return nil
}

var (
	ran         = regexp.MustCompile(`(?m)^Ran \d+ tests? in .*$`)
	startOfTest = regexp.MustCompile(`^(\w+) \(([\w.]+)\)`)
	endOfSkip   = regexp.MustCompile(`\.\.\. skipped (.*)$`)
)

// readUnittest finds the skips in the output of `python3 -m unittest -v`.
func readUnittest(text string, skips *skips) {
	name := ""
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
		}
	}
}
