// SPDX-License-Identifier: Apache-2.0

// Package cgroups finds the cgroup trees of a machine, and where the tests on Kubernetes may make groups in
// them.
package cgroups

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Tree is a mounted hierarchy of cgroups.
type Tree struct {
	Mount   string
	Kind    string // cgroup or cgroup2
	Options string // that mount it again
	Own     string // the group of this process
	// Unified: it has all controllers. Groups with children can't have processes there, except the root.
	Unified bool
}

// Leaf is the group for processes below a group with children.
const Leaf = "init"

// required are the controllers that a kubelet needs.
var required = []string{"cpu", "cpuset", "memory", "pids"}

// Find returns the mounted trees: those of v1, with one of v2 next to them, or a unified one of v2.
func Find(read func(file string) ([]byte, error)) ([]Tree, error) {
	mounts, err := read("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	own, err := read("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var found []Tree
	for line := range strings.Lines(string(mounts)) {
		before, after, ok := strings.Cut(line, " - ")
		f, rest := strings.Fields(before), strings.Fields(after)
		if !ok || rest[0] != "cgroup" && rest[0] != "cgroup2" || slices.ContainsFunc(found, func(t Tree) bool { return t.Mount == f[4] }) {
			continue // or covered
		}
		t := Tree{Mount: f[4], Kind: rest[0]}
		if t.Kind == "cgroup" {
			t.Options = strings.TrimPrefix(rest[2], "rw,")
		}
		for group := range strings.Lines(string(own)) { // number:controllers:path
			if parts := strings.SplitN(strings.TrimSpace(group), ":", 3); parts[1] == t.Options {
				t.Own = parts[2]
			}
		}
		if strings.HasPrefix(t.Options, "name=") {
			t.Options = "none," + t.Options
		}
		found = append(found, t)
	}
	if slices.ContainsFunc(found, func(t Tree) bool { return t.Options == "memory" }) {
		return found, nil
	}
	if len(found) != 1 || found[0].Kind != "cgroup2" {
		return nil, errors.New("no controllers of cgroup v1 and no unified tree of v2 in /sys/fs/cgroup")
	}
	found[0].Unified = true
	return found, found[0].check(read)
}

// check reports controllers that a unified tree lacks.
func (t Tree) check(read func(file string) ([]byte, error)) error {
	text, err := read(filepath.Join(t.Mount, "cgroup.controllers"))
	if err != nil {
		return err
	}
	if missing := without(required, strings.Fields(string(text))); len(missing) > 0 {
		return fmt.Errorf("cgroup v2 has no controllers %s here; run on the host, or in a container with its cgroups", strings.Join(missing, ", "))
	}
	return nil
}

// Group returns the folder of a group of this process. In a unified tree it is below the root, the only group
// that may have both processes and children with controllers.
func (t Tree) Group(name string) string {
	if t.Unified {
		return filepath.Join(t.Mount, name)
	}
	return filepath.Join(t.Mount, t.Own, name)
}

// Missing returns what to write to the file cgroup.subtree_control of the root, so that groups below it have the
// controllers; empty: they have.
func (t Tree) Missing(read func(file string) ([]byte, error)) (string, error) {
	if !t.Unified {
		return "", nil
	}
	text, err := read(filepath.Join(t.Mount, "cgroup.subtree_control"))
	if err != nil {
		return "", err
	}
	missing := without(required, strings.Fields(string(text)))
	for i := range missing {
		missing[i] = "+" + missing[i]
	}
	return strings.Join(missing, " "), nil
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(some, name) })
}
