// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// skips collects the skipped tests of one suite, with those that CI allows.
type skips struct {
	suite   string
	allowed map[string]string // test name: reason
	seen    []skip
}

type skip struct{ name, reason string }

// parseSkips reads lines "suite:test reason" and keeps those of one suite.
func parseSkips(suite, text string) (*skips, error) {
	s := &skips{suite: suite, allowed: map[string]string{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, _ := strings.Cut(line, " ")
		of, test, ok := strings.Cut(name, ":")
		if !ok || suites[of] == nil || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("want \"suite:test reason\", got %q", line)
		}
		if of == suite {
			s.allowed[test] = strings.TrimSpace(reason)
		}
	}
	return s, nil
}

func (s *skips) add(name, reason string) {
	s.seen = append(s.seen, skip{name, strings.Join(strings.Fields(reason), " ")})
}

// allows accepts a listed test and every subtest of it.
func (s *skips) allows(name string) bool {
	for {
		if _, ok := s.allowed[name]; ok {
			return true
		}
		slash := strings.LastIndexByte(name, '/')
		if slash < 0 {
			return false
		}
		name = name[:slash]
	}
}

// report prints one line for each skip. In CI it fails if one of them is not allowed.
func (s *skips) report(out io.Writer, ci bool) error {
	slices.SortFunc(s.seen, func(a, b skip) int { return strings.Compare(a.name, b.name) })
	refused := 0
	for _, k := range s.seen {
		verdict := ""
		switch {
		case s.allows(k.name):
			verdict = " (allowed)"
		case ci:
			verdict = " (not in " + skipsFile + ")"
			refused++
		}
		fmt.Fprintf(out, "SKIP %s:%s: %s%s\n", s.suite, k.name, k.reason, verdict)
	}
	if refused > 0 {
		return fmt.Errorf("%d skipped tests fail in CI; install what they need (make setup) or list them in %s", refused, skipsFile)
	}
	return nil
}
