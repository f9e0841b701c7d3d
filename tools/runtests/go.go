// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// module prefixes the package paths that go test prints.
const module = "xsched/"

// event is a line of `go test -json` (see `go doc test2json`).
type event struct {
	Action, Package, Test, Output, FailedBuild string
}

func runGo(ctx context.Context, out io.Writer, skips *skips, args []string) ([]failure, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	bad, err := readEvents(events, out, skips)
	if waited := cmd.Wait(); waited != nil {
		if _, exited := errors.AsType[*exec.ExitError](waited); !exited || len(bad) == 0 && err == nil {
			return nil, waited
		}
	}
	var failed []failure
	for _, b := range bad {
		failed = append(failed, failure{b.String(), b.from, b.to, b.crashed, func(ctx context.Context) ([]failure, error) {
			return runGo(ctx, out, skips, b.only(args))
		}})
	}
	return failed, err
}

// goTest is a test; without a name, all tests of its package.
type goTest struct {
	pkg, name string
	from, to  time.Time // zero: it was not built
	crashed   bool
}

func (g goTest) String() string {
	return strings.Trim(strings.TrimPrefix(g.pkg, module)+"."+g.name, ".")
}

// only changes arguments of go test to run this test.
func (g goTest) only(args []string) []string {
	isPackage := func(arg string) bool { return strings.HasPrefix(arg, "./") || strings.HasPrefix(arg, module) }
	at := max(0, slices.IndexFunc(args, isPackage))
	only := slices.Clone(args[:at])
	if g.name != "" {
		only = append(only, "-run", "^"+g.name+"$") // the last -run counts
	}
	only = append(only, g.pkg)
	return append(only, slices.DeleteFunc(slices.Clone(args[at:]), isPackage)...)
}

// readEvents prints the output of `go test` without -json, records skips and returns what failed.
func readEvents(in io.Reader, out io.Writer, skips *skips) (failed []goTest, err error) {
	type key struct{ pkg, test string }
	output := map[key]*bytes.Buffer{} // of tests that have not ended
	began, broke := map[key]time.Time{}, map[key]bool{}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && errors.Is(err, io.EOF) {
			return failed, nil
		} else if len(line) == 0 {
			return failed, err
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			fmt.Fprintf(out, "%s", line) // not an event: a message of the go command
			continue
		}
		k, now := key{e.Package, e.Test}, time.Now()
		switch e.Action {
		case "start", "run":
			began[k] = now
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "output":
			if e.Test == "" {
				if e.Output != "PASS\n" {
					fmt.Fprint(out, e.Output)
				}
				broke[k] = broke[k] || crashed(e.Output)
				continue
			}
			if output[k] == nil {
				output[k] = &bytes.Buffer{}
			}
			output[k].WriteString(e.Output)
		case "skip":
			if e.Test != "" {
				skips.add(strings.TrimPrefix(e.Package, module)+"."+e.Test, said(output[k]))
			}
			delete(output, k)
		case "pass":
			delete(output, k)
		case "fail":
			if e.Test != "" {
				text := frameless(output[k])
				fmt.Fprint(out, text)
				delete(output, k)
				whole, _, sub := strings.Cut(e.Test, "/")
				k.test = whole
				broke[k] = broke[k] || crashed(text)
				if !sub {
					failed = append(failed, goTest{e.Package, e.Test, began[k], now, broke[k]})
				}
				continue
			}
			// A test that never ended: a panic or a timeout. Others may not have begun.
			whole := !slices.ContainsFunc(failed, func(g goTest) bool { return g.pkg == e.Package })
			for other, text := range output {
				if other.pkg == e.Package {
					text := frameless(text)
					fmt.Fprint(out, text)
					broke[k] = broke[k] || crashed(text)
					delete(output, other)
					whole = true
				}
			}
			if whole {
				failed = slices.DeleteFunc(failed, func(g goTest) bool { return g.pkg == e.Package })
				g := goTest{pkg: e.Package, crashed: broke[k]}
				if e.FailedBuild == "" {
					g.from, g.to = began[k], now
				}
				failed = append(failed, g)
			}
		}
	}
}

// frameless drops the RUN, PAUSE and result lines of a test.
func frameless(text *bytes.Buffer) string {
	if text == nil {
		return ""
	}
	var b strings.Builder
	for line := range strings.Lines(text.String()) {
		if !strings.HasPrefix(line, "=== ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// said extracts the reason of a skip from the output of its test.
func said(text *bytes.Buffer) string {
	var reason []string
	for line := range strings.Lines(frameless(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "--- SKIP") {
			continue
		}
		if at, rest, ok := strings.Cut(line, ": "); ok && strings.Contains(at, ".go:") {
			line = rest
		}
		reason = append(reason, line)
	}
	if len(reason) == 0 {
		return "no reason given"
	}
	return reason[len(reason)-1]
}
