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
	"strings"
)

// module prefixes the package paths that go test prints.
const module = "xsched/"

// event is a line of `go test -json` (see `go doc test2json`).
type event struct {
	Action, Package, Test, Output string
}

func runGo(ctx context.Context, out io.Writer, skips *skips, args []string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := readEvents(events, out, skips)
	if err := cmd.Wait(); err != nil {
		if _, exited := errors.AsType[*exec.ExitError](err); exited {
			return errTests
		}
		return err
	}
	return readErr
}

// readEvents prints the output of `go test` without -json, and records skips.
func readEvents(in io.Reader, out io.Writer, skips *skips) error {
	type key struct{ pkg, test string }
	output := map[key]*bytes.Buffer{} // of tests that have not ended
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && errors.Is(err, io.EOF) {
			return nil
		} else if len(line) == 0 {
			return err
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			fmt.Fprintf(out, "%s", line) // not an event: a message of the go command
			continue
		}
		k := key{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "output":
			if e.Test == "" {
				if e.Output != "PASS\n" {
					fmt.Fprint(out, e.Output)
				}
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
				fmt.Fprint(out, frameless(output[k]))
				delete(output, k)
				continue
			}
			// A test that never ended: a panic or a timeout.
			for other, text := range output {
				if other.pkg == e.Package {
					fmt.Fprint(out, frameless(text))
					delete(output, other)
				}
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
