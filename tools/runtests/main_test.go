// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func list(t *testing.T, suite, text string) *skips {
	t.Helper()
	s, err := parseSkips(suite, text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSkipsFailInCIUnlessListed(t *testing.T) {
	const text = "# comment\n\ngo:internal/a.TestX needs two users\nc:tsan/core-a slow\n"
	for _, c := range []struct {
		suite, name string
		refused     bool
	}{
		{"go", "internal/a.TestX", false},
		{"go", "internal/a.TestX/sub/case", false},
		{"go", "internal/a.TestXY", true},
		{"go", "internal/b.TestX", true},
		{"c", "tsan/core-a", false},
		{"c", "plain/core-a", true},
		{"python", "internal/a.TestX", true},
	} {
		for _, ci := range []bool{true, false} {
			s := list(t, c.suite, text)
			s.add(c.name, "the\nreason")
			var out strings.Builder
			if err := s.report(&out, ci); (err != nil) != (c.refused && ci) {
				t.Errorf("%s:%s in CI %v: %v", c.suite, c.name, ci, err)
			}
			if want := "SKIP " + c.suite + ":" + c.name + ": the reason"; !strings.Contains(out.String(), want) {
				t.Errorf("%q, want %q", out.String(), want)
			}
		}
	}
}

func TestSkipsNeedASuiteAndAReason(t *testing.T) {
	for _, line := range []string{"go:TestX", "TestX reason", "rust:TestX reason", "go:TestX  "} {
		if _, err := parseSkips("go", line); err == nil {
			t.Errorf("%q was accepted", line)
		}
	}
}

func TestGoEvents(t *testing.T) {
	const events = `{"Action":"start","Package":"xsched/a"}
{"Action":"run","Package":"xsched/a","Test":"TestGood"}
{"Action":"output","Package":"xsched/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"xsched/a","Test":"TestGood","Output":"noise\n"}
{"Action":"pass","Package":"xsched/a","Test":"TestGood"}
{"Action":"output","Package":"xsched/a","Test":"TestSkip","Output":"    a_test.go:7: no compiler: gcc\n"}
{"Action":"output","Package":"xsched/a","Test":"TestSkip","Output":"--- SKIP: TestSkip (0.00s)\n"}
{"Action":"skip","Package":"xsched/a","Test":"TestSkip"}
{"Action":"output","Package":"xsched/a","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"xsched/a","Test":"TestBad","Output":"    a_test.go:9: wrong\n"}
{"Action":"fail","Package":"xsched/a","Test":"TestBad"}
{"Action":"output","Package":"xsched/a","Test":"TestHung","Output":"panic: test timed out after 8m0s\n"}
{"Action":"output","Package":"xsched/a","Output":"FAIL\txsched/a\t1.0s\n"}
{"Action":"fail","Package":"xsched/a"}
{"ImportPath":"xsched/b","Action":"build-output","Output":"b.go:1: syntax error\n"}
{"Action":"start","Package":"xsched/b"}
{"Action":"fail","Package":"xsched/b","FailedBuild":"xsched/b"}
a line of the go command
{"Action":"output","Package":"xsched/c","Output":"PASS\n"}
{"Action":"output","Package":"xsched/c","Output":"ok  \txsched/c\t0.1s\n"}
{"Action":"pass","Package":"xsched/c"}
{"Action":"skip","Package":"xsched/d"}
{"Action":"start","Package":"xsched/e"}
{"Action":"run","Package":"xsched/e","Test":"TestOne"}
{"Action":"run","Package":"xsched/e","Test":"TestOne/sub"}
{"Action":"fail","Package":"xsched/e","Test":"TestOne/sub"}
{"Action":"fail","Package":"xsched/e","Test":"TestOne"}
{"Action":"fail","Package":"xsched/e"}
{"Action":"start","Package":"xsched/f"}
{"Action":"run","Package":"xsched/f","Test":"TestPanics"}
{"Action":"output","Package":"xsched/f","Test":"TestPanics","Output":"panic: runtime error: index out of range\n"}
{"Action":"fail","Package":"xsched/f","Test":"TestPanics"}
{"Action":"fail","Package":"xsched/f"}
`
	const want = "    a_test.go:9: wrong\n" + "FAIL\txsched/a\t1.0s\n" + "panic: test timed out after 8m0s\n" + "b.go:1: syntax error\n" +
		"a line of the go command\n" + "ok  \txsched/c\t0.1s\n" + "panic: runtime error: index out of range\n"
	var out strings.Builder
	s := list(t, "go", "")
	failed, err := readEvents(strings.NewReader(events), &out, s)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("printed:\n%swant:\n%s", out.String(), want)
	}
	if len(s.seen) != 1 || s.seen[0] != (skip{"a.TestSkip", "no compiler: gcc"}) {
		t.Errorf("skips %+v", s.seen)
	}
	// TestHung never ended, so others may not have begun: all of its package counts.
	var names []string
	for _, g := range failed {
		names = append(names, g.String())
	}
	if got := strings.Join(names, " "); got != "a b e.TestOne f.TestPanics" {
		t.Errorf("failed: %s", got)
	}
	if !failed[0].from.Before(failed[0].to) || !failed[1].from.IsZero() || !failed[2].from.Before(failed[2].to) {
		t.Errorf("times of %+v; want none of what was not built", failed)
	}
	if failed[0].crashed || failed[2].crashed || !failed[3].crashed {
		t.Errorf("crashed: %+v", failed)
	}
}

func TestUnittestOutput(t *testing.T) {
	const text = `test_a (tests.test_x.X.test_a) ... ok
test_b (tests.test_x.X.test_b) ... skipped 'no library'
test_c (test_y.Y)
What it checks. ... skipped "isn't built"
`
	for _, c := range []struct{ end, summary, err string }{
		{"Ran 3 tests in 0.1s\n\nOK (skipped=2)\n", "Ran 3 tests in 0.1s", ""},
		{"Ran 3 tests in 0.1s\n\nFAILED (failures=1, skipped=2)\n", "Ran 3 tests in 0.1s", ""},
		{"Ran 4 tests in 0.1s\n\nOK (skipped=3)\n", "", "unittest skipped 3 tests, but its output names 2"},
		{"Ran 3 tests in 0.1s\n\nOK\n", "", "unittest skipped 0 tests"},
		{"Ran 0 tests in 0.0s\n\nOK\n", "", "no test ran"},
		{"", "", "no test ran"},
	} {
		s := list(t, "python", "")
		summary, err := readUnittest(text+c.end, s)
		if summary != c.summary || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %q, %v", c.end, summary, err)
		}
		if len(s.seen) != 2 || s.seen[0] != (skip{"tests.test_x.X.test_b", "no library"}) || s.seen[1] != (skip{"test_y.Y.test_c", "isn't built"}) {
			t.Errorf("skips %+v", s.seen)
		}
	}
}

// TestPythonWithoutTests: a folder without tests fails, in every version of Python.
func TestPythonWithoutTests(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	dir := t.TempDir()
	var out strings.Builder
	if failed, err := runPython(t.Context(), &out, list(t, "python", ""), []string{dir}); err != nil || len(failed) != 1 || !strings.Contains(out.String(), "no test ran") {
		t.Errorf("%v %v\n%s", failed, err, out.String())
	}
	test := "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): pass\n"
	if err := os.WriteFile(filepath.Join(dir, "test_it.py"), []byte(test), 0o644); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if failed, err := runPython(t.Context(), &out, list(t, "python", ""), []string{dir}); err != nil || len(failed) != 0 || !strings.Contains(out.String(), "Ran 1 test in") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestCPrograms runs shell scripts in place of C tests: one passes, one fails, two skip.
func TestCPrograms(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no sh")
	}
	t.Chdir(t.TempDir())
	dir := filepath.Join("build", "test", "plain")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"good": "exit 0", "bad": "echo broken; exit 3", "once": "[ -e ran ] && exit 0; echo late >ran; exit 1", "part": "echo 'skipped: no seccomp'; exit 0", "none": "echo no GPU; exit 77",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	s := list(t, "c", "")
	if failed, err := runC(t.Context(), &out, s, []string{"-variants", "plain", "-jobs", "2", "good", "part", "none"}); err != nil || len(failed) != 0 {
		t.Errorf("%v %v\n%s", failed, err, out.String())
	}
	if len(s.seen) != 2 {
		t.Errorf("skips %+v", s.seen)
	}
	out.Reset()
	failed, err := runC(t.Context(), &out, s, []string{"-variants", "plain", "good", "bad", "once"})
	if err != nil || len(failed) != 2 || failed[0].name != "plain/bad" || !strings.Contains(out.String(), "broken") {
		t.Fatalf("%v %v\n%s", failed, err, out.String())
	}
	for i, want := range []int{1, 0} { // the second one passes when it runs again
		if left, err := failed[i].again(t.Context()); err != nil || len(left) != want {
			t.Errorf("%s again: %v %v", failed[i].name, left, err)
		}
	}
}
