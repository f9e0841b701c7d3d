// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every fuzz target of the repository is in the list, and the list names no other.
func TestListIsComplete(t *testing.T) {
	root := filepath.Join("..", "..")
	targets, err := readTargets(filepath.Join(root, targetsFile))
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, target := range targets {
		listed = append(listed, target.String())
	}
	slices.Sort(listed)
	found, err := findTargets(root)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(listed, found) {
		t.Errorf("%s lists\n  %s\nthe source tree has\n  %s", targetsFile, strings.Join(listed, "\n  "), strings.Join(found, "\n  "))
	}
}

func TestReadTargetsRefusesBadLines(t *testing.T) {
	for _, text := range []string{"internal/wire FuzzFrame users\n", "internal/wire FuzzFrame nobody frames\n"} {
		file := filepath.Join(t.TempDir(), "targets.txt")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := readTargets(file); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// The archive keeps a corpus and is the same for the same corpus.
func TestCorpusIsKept(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	folder := filepath.Join(in, "internal-wire-FuzzFrame", "FuzzFrame")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a": "one", "b": "two", "big": strings.Repeat("x", keepBytes+1)} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	first, second := filepath.Join(dir, "1.tar.gz"), filepath.Join(dir, "2.tar.gz")
	if err := pack(in, first); err != nil {
		t.Fatal(err)
	}
	if err := unpack(first, out); err != nil {
		t.Fatal(err)
	}
	if err := pack(out, second); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(first)
	b, _ := os.ReadFile(second)
	if len(a) == 0 || !bytes.Equal(a, b) {
		t.Errorf("archives differ: %d and %d bytes", len(a), len(b))
	}
	if got, err := os.ReadFile(filepath.Join(out, "internal-wire-FuzzFrame", "FuzzFrame", "b")); err != nil || string(got) != "two" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(out, "internal-wire-FuzzFrame", "FuzzFrame", "big")); err == nil {
		t.Error("an input above the limit was kept")
	}
}

func TestRecordAddsUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "record.json")
	r := result{target: target{pkg: "internal/wire", name: "FuzzFrame"}, took: time.Minute, inputs: 10}
	failed := result{target: target{pkg: "internal/wire", name: "FuzzPage"}, err: os.ErrInvalid}
	for range 2 {
		if err := record([]result{r, failed}, file); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readRecord(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := got["internal/wire FuzzFrame"]; n.Seconds != 120 || n.Inputs != 20 || len(got) != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestInputsReadsTheLastCount(t *testing.T) {
	out := []byte("fuzz: elapsed: 3s, execs: 38456 (12798/sec)\nfuzz: elapsed: 6s, execs: 76943 (13901/sec)\nPASS\n")
	if got := inputs(out); got != 76943 {
		t.Errorf("got %d", got)
	}
}

var fuzzFunc = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// findTargets returns "package target" of every fuzz target in the source tree.
func findTargets(root string) ([]string, error) {
	var out []string
	for _, dir := range []string{"internal", "tools", "test"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			pkg, err := filepath.Rel(root, filepath.Dir(path))
			for _, m := range fuzzFunc.FindAllSubmatch(text, -1) {
				out = append(out, pkg+" "+string(m[1]))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(out)
	return out, nil
}
