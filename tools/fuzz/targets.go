// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// target is a fuzz target and the trust boundary that it tests.
type target struct {
	pkg, name string // internal/wire, FuzzFrame
	faces     string // who can send input to it
	boundary  string
}

func (t target) String() string { return t.pkg + " " + t.name }

// id names the target in file names.
func (t target) id() string { return strings.ReplaceAll(t.pkg, "/", "-") + "-" + t.name }

// Unprivileged users get the longer time.
const facesUsers = "users"

var facing = []string{facesUsers, "operators", "drivers", "tests"}

// readTargets reads lines "package target faces boundary...".
func readTargets(file string) ([]target, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var out []target
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		w := strings.Fields(line)
		if len(w) < 4 || !slices.Contains(facing, w[2]) {
			return nil, fmt.Errorf("%s:%d: want: package target %s boundary", file, n, strings.Join(facing, "|"))
		}
		out = append(out, target{w[0], w[1], w[2], strings.Join(w[3:], " ")})
	}
	return out, lines.Err()
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
