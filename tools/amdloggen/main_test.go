// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"xsched/internal/amdlog"
)

// generate writes a log and returns the expected counts.
func generate(t *testing.T, args ...string) ([]byte, counts) {
	t.Helper()
	expect := filepath.Join(t.TempDir(), "expect.json")
	var out bytes.Buffer
	if err := run(append(args, "-expect", expect), &out); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(expect)
	if err != nil {
		t.Fatal(err)
	}
	var want counts
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), want
}

// TestReaderFindsAll compares the analysis of a log of each era with the
// generator's counts and with grep.
func TestReaderFindsAll(t *testing.T) {
	for _, era := range append(eraNames, "mixed") {
		t.Run(era, func(t *testing.T) {
			text, want := generate(t, "-lines", "20000", "-kernels", "500", "-broken", "50", "-era", era)
			l, err := amdlog.Read(t.Context(), bytes.NewReader(text), amdlog.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := counts{
				Lines: int(l.Lines.Total), Kernels: int(l.Kernels), Text: int(l.Lines.Text), Damaged: int(l.Lines.Damaged),
				Cut: int(l.Lines.Cut), Glued: int(l.Lines.Glued), Orphans: int(l.Orphans),
			}
			if got != want || want.Lines != 20000 || want.Kernels != 500 {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if n := count(t, text, "grep", "-a", "-c", "Dispatch Header"); n != want.Kernels || int(l.DispatchLines) != n {
				t.Errorf("grep finds %d kernels", n)
			}
			if n := count(t, text, "awk", "/Dispatch Header/ { n++ } END { print n + 0 }"); n != want.Kernels {
				t.Errorf("awk finds %d kernels", n)
			}
			queues := 0
			for _, p := range l.Processes {
				queues += len(p.Queues)
			}
			if queues < 8 {
				t.Errorf("%d queues", queues)
			}
		})
	}
}

// count returns the result of another program.
func count(t *testing.T, text []byte, name string, args ...string) int {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Stdin = bytes.NewReader(text)
	c.Env = append(os.Environ(), "LC_ALL=C")
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSameBytes(t *testing.T) {
	first, _ := generate(t, "-lines", "5000", "-kernels", "100")
	again, _ := generate(t, "-lines", "5000", "-kernels", "100")
	other, _ := generate(t, "-lines", "5000", "-kernels", "100", "-seed", "2")
	if !bytes.Equal(first, again) || bytes.Equal(first, other) {
		t.Error("the bytes must depend on the arguments, and on nothing else")
	}
}

func TestRefuses(t *testing.T) {
	for _, args := range [][]string{{"-case", "c"}, {"-era", "9"}, {"-lines", "100", "-kernels", "50"}} {
		if err := run(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
