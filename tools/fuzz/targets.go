// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
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
