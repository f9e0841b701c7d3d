// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// evidence matches what the last column of a table in docs/threat-model.md names: packages with
// tests, or attacks.
var (
	evidencePart   = regexp.MustCompile("^`((?:internal|test)/[a-z0-9/]+)` ((?:(?:Test|Fuzz)\\w+(?:, )?)+)$")
	evidenceAttack = regexp.MustCompile("^attack ((?:`[a-z0-9-]+`(?:, )?)+)$")
	testFunction   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	attackName     = regexp.MustCompile(`\{name: "([a-z0-9-]+)"`)
)

// namesIn returns the first groups of all matches in the files that a pattern names.
func namesIn(t *testing.T, files string, pattern *regexp.Regexp) map[string]bool {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(root, files))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, name := range all {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
	}
	return names
}

// TestThreatModelNamesItsTests: each line about an entry point or a failure names tests or attacks that
// exist.
func TestThreatModelNamesItsTests(t *testing.T) {
	const page = "docs/threat-model.md"
	attacks := namesIn(t, "test/attack/attacks.go", attackName)
	tests := map[string]map[string]bool{}
	lines, inTable := 0, false
	prose(t, page, func(number int, line string) {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		switch {
		case !strings.HasPrefix(line, "|"):
			inTable = false
			return
		case last == "shown by":
			inTable = true
			return
		case !inTable || strings.HasPrefix(last, "---"):
			return
		}
		lines++
		for part := range strings.SplitSeq(last, "; ") {
			if m := evidenceAttack.FindStringSubmatch(part); m != nil {
				for name := range strings.SplitSeq(m[1], ", ") {
					if !attacks[strings.Trim(name, "`")] {
						t.Errorf("%s:%d: no attack %s in test/attack", page, number, name)
					}
				}
				continue
			}
			m := evidencePart.FindStringSubmatch(part)
			if m == nil {
				t.Errorf("%s:%d: %q names no test; write `package` TestName, or attack `name`", page, number, part)
				continue
			}
			if tests[m[1]] == nil {
				tests[m[1]] = namesIn(t, m[1]+"/*_test.go", testFunction)
			}
			for name := range strings.SplitSeq(m[2], ", ") {
				if !tests[m[1]][name] {
					t.Errorf("%s:%d: %s has no %s", page, number, m[1], name)
				}
			}
		}
	})
	if lines < 60 {
		t.Errorf("%s has %d lines with evidence; the pattern no longer matches", page, lines)
	}
}
