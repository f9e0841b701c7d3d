// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// exampleImage is the image of the example. The node has no network, so the test puts one of this name
// there: with a shell and a C library, without a program for the GPU.
const exampleImage = "docker.io/library/debian:13-slim"

// testExample follows the ten-minute start, command by command, from the example to its removal.
func testExample(t *testing.T, s site) {
	m := newImage(exampleImage, "sh")
	m.copyLibraries(product(t, "build/virtual/tenant"))
	if err := m.load(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "kubernetes", "start.md"))
	if err != nil {
		t.Fatal(err)
	}
	kubectlXSched(t)
	env := append(environment(), "PATH="+filepath.Join(folder(), "bin")+":"+os.Getenv("PATH"))
	run := func(commands []string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-e", "-x", "-c", strings.Join(commands, "\n"))
		cmd.Dir, cmd.Env = root, env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	remove := stepCommands(string(text), "7")
	remove = remove[:slices.IndexFunc(remove, func(c string) bool { return strings.HasPrefix(c, "helm") })]
	t.Cleanup(func() { // also after a failure: other tests need the GPU
		if out, err := run(remove); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
		s.empty()
	})
	for _, step := range []struct {
		number string
		prints []string
	}{
		{"3", []string{"Running", "allocated,reserved"}},
		{"4", []string{
			"XSCHED_DIR=/run/xsched", "default/service/server ", "default/training/train ", "preemption  default/service/server ",
		}},
		{"5", []string{"priority 5 of the claim is above the -10 of its device class", "cannot allocate all claims"}},
		{"6", []string{" service ", " training ", "PROGRAMS"}},
	} {
		commands := stepCommands(string(text), step.number)
		var out string
		eventually(t, "step "+step.number+" prints what the page says", func() bool {
			var err error
			if out, err = run(commands); err != nil {
				t.Logf("%v:\n%s", err, out)
				return false
			}
			return !slices.ContainsFunc(step.prints, func(part string) bool { return !strings.Contains(out, part) })
		})
		t.Logf("step %s:\n%s", step.number, out)
	}
}

// stepCommands returns the commands of a step of a page: those with a prompt, if any has one. They can be
// repeated.
func stepCommands(page, number string) (all []string) {
	_, step, _ := strings.Cut(page, "\n## "+number+". ")
	step, _, _ = strings.Cut(step, "\n## ")
	prompts := strings.Contains(step, "\n    $ ")
	for line := range strings.Lines(step) {
		command, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		if prompts && ok {
			command, ok = strings.CutPrefix(command, "$ ")
		}
		if ok {
			all = append(all, command)
		}
	}
	return all
}
