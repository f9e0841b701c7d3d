// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../../"

func TestGeneratedFilesAreCurrent(t *testing.T) {
	for _, c := range contracts {
		got, err := generate(root, c)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(root + c.file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is out of date with %s; run: go run ./tools/wiregen", c.file, c.header)
		}
	}
}

func TestRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for name, src := range map[string]string{
		"implicit padding":       "struct xsw_a {\n uint32_t x;\n uint64_t y;\n};\n",
		"implicit padding at":    "struct xsw_a {\n uint64_t y;\n uint32_t x;\n};\n",
		"not a field":            "struct xsw_a {\n size_t x;\n};\n",
		"not an enum member":     "enum xsw_a {\n XSW_A,\n};\n",
		"not understood":         "typedef int foo;\n",
		"is not declared before": "struct xsw_a {\n struct xsw_b b;\n};\n",
		"array length":           "struct xsw_a {\n char b[NOPE];\n};\n",
		"unclosed block":         "struct xsw_a {\n",
	} {
		if _, err := parse(src, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// The layout of each version is on record. A changed header needs a new version, or (before its
// release) a deliberate change of the record.
func TestLayoutChangesOnlyWithTheVersion(t *testing.T) {
	got, version, err := layout(root)
	if err != nil {
		t.Fatal(err)
	}
	if want := golden(t, version); got != want {
		t.Errorf("the wire contract differs from layout-%d.txt: increment XSW_VERSION, then run: go run ./tools/wiregen -layout > internal/wire/testdata/layout-N.txt\n%s",
			version, firstDifference(got, want))
	}
}

// Daemon and library of neighbouring releases talk, so a version keeps what the one before it had.
func TestLayoutExtendsThePreviousVersion(t *testing.T) {
	_, version, err := layout(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range incompatible(golden(t, version-1), golden(t, version)) {
		t.Error(problem)
	}
}

func TestIncompatibleLayouts(t *testing.T) {
	before := "define VERSION 1\nenum kind A 1\nstruct a bytes 8\nfield a.x uint64_t at 0, 8 bytes\n"
	hint := "struct hint bytes 16\nfield hello.hint hint at 16, 16 bytes\nfield hello.policy char at 32, 32 bytes\nstruct hello bytes 64\n"
	for name, c := range map[string]struct {
		before, now string
		bad         bool
	}{
		"same":                     {before, before, false},
		"new version, field":       {before, strings.Replace(before, "VERSION 1", "VERSION 2", 1) + "field a.y uint32_t at 8, 4 bytes\n", false},
		"field moved":              {before, strings.Replace(before, "at 0", "at 8", 1), true},
		"field gone":               {before, strings.Replace(before, "field a.x", "field a.z", 1), true},
		"struct grew":              {before, strings.Replace(before, "a bytes 8", "a bytes 16", 1), true},
		"value changed":            {before, strings.Replace(before, "A 1", "A 2", 1), true},
		"hint grew":                {hint, "struct hint bytes 24\nfield hello.hint hint at 16, 24 bytes\nfield hello.policy char at 40, 32 bytes\nstruct hello bytes 72\n", false},
		"hint grew, policy stayed": {hint, "struct hint bytes 24\nfield hello.hint hint at 16, 24 bytes\nfield hello.policy char at 32, 32 bytes\nstruct hello bytes 72\n", true},
	} {
		if got := incompatible(c.before, c.now); (len(got) > 0) != c.bad {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func golden(t *testing.T, version int64) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("%sinternal/wire/testdata/layout-%d.txt", root, version))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			return fmt.Sprintf("line %d: %q", i+1, g[i])
		}
	}
	return fmt.Sprintf("line %d is missing", len(g))
}

// mayChange lists what each version defines anew.
var mayChange = map[string]bool{
	"define VERSION": true, "define VERSION_MIN": true, "define PAGE_BYTES": true, "enum hint_field HINT_ALL": true,
}

// incompatible lists the facts of a layout that the next one does not keep. A hint may grow, which
// moves what follows it in its frames.
func incompatible(before, now string) (problems []string) {
	facts := func(text string) map[string]string {
		out := map[string]string{}
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			switch {
			case len(f) > 2 && (f[0] == "define" || f[0] == "field"):
				out[f[0]+" "+f[1]] = strings.Join(f[2:], " ")
			case len(f) > 3:
				out[f[0]+" "+f[1]+" "+f[2]] = strings.Join(f[3:], " ")
			}
		}
		return out
	}
	old, fresh := facts(before), facts(now)
	number := func(m map[string]string, key string) int { n, _ := strconv.Atoi(m[key]); return n }
	grown := number(fresh, "struct hint bytes") - number(old, "struct hint bytes")
	for key, value := range old {
		if grown > 0 {
			value = grow(key, value, grown)
		}
		if got, ok := fresh[key]; !mayChange[key] && (!ok || got != value) {
			problems = append(problems, fmt.Sprintf("%s was %q, is %q", key, value, got))
		}
	}
	slices.Sort(problems)
	return problems
}

// grow returns a fact about a frame with a hint after the hint has grown.
func grow(key, value string, by int) string {
	var at, n int
	var ctype string
	switch key {
	case "struct hint bytes", "struct hello bytes", "struct hint_frame bytes":
		_, _ = fmt.Sscan(value, &n)
		return strconv.Itoa(n + by)
	case "field hello.hint", "field hint_frame.hint":
		_, _ = fmt.Sscanf(value, "%s at %d, %d bytes", &ctype, &at, &n)
		return fmt.Sprintf("%s at %d, %d bytes", ctype, at, n+by)
	case "field hello.policy", "field hello.command", "field hint_frame.policy":
		_, _ = fmt.Sscanf(value, "%s at %d, %d bytes", &ctype, &at, &n)
		return fmt.Sprintf("%s at %d, %d bytes", ctype, at+by, n)
	}
	return value
}
