// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestDocumented checks that docs/cli.md has a row for exactly the existing commands, and that every
// flag in a row belongs to its command.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot(&app{stdout: io.Discard, stderr: io.Discard})
	root.InitDefaultCompletionCmd()
	commands := map[string]*cobra.Command{}
	var walk func(c *cobra.Command, path string)
	walk = func(c *cobra.Command, path string) {
		for _, sub := range c.Commands() {
			name := strings.TrimSpace(path + " " + sub.Name())
			switch {
			case sub.Hidden || sub.Name() == "help":
			case sub.HasAvailableSubCommands() && sub.Name() != "completion":
				walk(sub, name)
				if strings.Contains(sub.Use, ".yaml") { // runs by itself too
					commands[name] = sub
				}
			default:
				commands[name] = sub
			}
		}
	}
	walk(root, "")

	documented := map[string]bool{}
	flag, usage := regexp.MustCompile(`--([a-z][a-z0-9-]*)`), regexp.MustCompile("`([a-z]+(?:-[a-z]+)*(?: [a-z]+(?:-[a-z]+)*)*)")
	inTable := false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "| command |"):
			inTable = true
			continue
		case !strings.HasPrefix(line, "|"):
			inTable = false
		}
		if !inTable || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.SplitN(line, "|", 3) // a bar inside a cell is escaped as \|
		first := cells[1]
		for strings.HasSuffix(first, `\`) {
			more := strings.SplitN(cells[2], "|", 2)
			first, cells[2] = first+more[0], more[1]
		}
		var known []*cobra.Command
		for _, m := range usage.FindAllStringSubmatch(first, -1) {
			name := strings.TrimSpace(m[1])
			if c := commands[name]; c != nil {
				known = append(known, c)
				documented[name] = true
			} else {
				t.Errorf("docs/cli.md has a row for %q, which is not a command", name)
			}
		}
		for _, m := range flag.FindAllStringSubmatch(line, -1) {
			if !slices.ContainsFunc(known, func(c *cobra.Command) bool { return c.Flags().Lookup(m[1]) != nil }) && !mentions(line, m[1]) {
				t.Errorf("docs/cli.md: %s has no flag --%s", first, m[1])
			}
		}
	}
	for name := range commands {
		if !documented[name] {
			t.Errorf("docs/cli.md has no row for `%s`", name)
		}
	}
}

// mentions reports whether a row names the flag together with another command: `serve --record`.
func mentions(line, name string) bool {
	return regexp.MustCompile("`(serve|run)[^`]*--" + name + "[^a-z-]").MatchString(line)
}
