// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

const documents = "../../../docs"

var (
	// A command in a code block or in inline code, to the end of what belongs to it.
	documentedCommand = regexp.MustCompile("(?m)(?:^    (?:\\$ )?|`)(kubectl xsched|xsched-kube|xsched kube)((?: [^`|>#\n]*)?)")
	chartSetting      = regexp.MustCompile(`--set ([A-Za-z.]+)=`)
	continued         = regexp.MustCompile(`\\\n\s*`)
	placeholder       = regexp.MustCompile(`^[A-Z][A-Z.]+$`)
)

// pages returns the Markdown files of the documentation, with continued lines joined.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(documents, func(name string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".md" {
			return err
		}
		text, err := os.ReadFile(name)
		out[name] = continued.ReplaceAllString(string(text), "")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestDocumentedCommands checks that the commands of the documentation exist and have the flags.
func TestDocumentedCommands(t *testing.T) {
	found := 0
	for name, text := range pages(t) {
		for _, m := range documentedCommand.FindAllStringSubmatch(text, -1) {
			found++
			a := &app{stdout: io.Discard, stderr: io.Discard}
			root := a.root()
			if m[1] == "kubectl xsched" {
				root = a.plugin()
			}
			if err := understands(root, strings.Fields(m[2])); err != nil {
				t.Errorf("%s: %s%s: %v", name, m[1], m[2], err)
			}
		}
	}
	if found < 20 {
		t.Errorf("found only %d commands; the pattern no longer matches", found)
	}
}

// understands parses arguments as the program would. A mention may lack arguments and have placeholders.
func understands(root *cobra.Command, args []string) error {
	c, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if c == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && !placeholder.MatchString(strings.Trim(rest[0], "[]")) {
		return fmt.Errorf("unknown command %q", rest[0])
	}
	c.InitDefaultHelpFlag()
	for _, arg := range rest {
		flag, _, _ := strings.Cut(arg, "=")
		switch {
		case strings.HasPrefix(flag, "--") && c.Flags().Lookup(flag[2:]) == nil && c.InheritedFlags().Lookup(flag[2:]) == nil,
			len(flag) == 2 && flag[0] == '-' && flag[1] != '-' && c.Flags().ShorthandLookup(flag[1:]) == nil:
			return fmt.Errorf("%s has no flag %s", c.CommandPath(), flag)
		}
	}
	return nil
}

// TestDocumentedValues checks that the chart has the values that the documentation sets.
func TestDocumentedValues(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/helm/xsched/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	found := 0
	for name, text := range pages(t) {
		for _, m := range chartSetting.FindAllStringSubmatch(text, -1) {
			found++
			var at any = values
			if slices.ContainsFunc(strings.Split(m[1], "."), func(key string) bool {
				level, _ := at.(map[string]any)
				next, ok := level[key]
				at = next
				return !ok
			}) {
				t.Errorf("%s: the chart has no value %s", name, m[1])
			}
		}
	}
	if found < 3 {
		t.Errorf("found only %d values; the pattern no longer matches", found)
	}
}

// TestTroubleshootingNamesEveryEvent checks that the page by symptom names what a user can see of the
// plugin: every reason of an event, and every taint.
func TestTroubleshootingNamesEveryEvent(t *testing.T) {
	text, err := os.ReadFile(documents + "/kubernetes/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ folder, pattern string }{
		{"node", `\breason\w+ += "(\w+)"`}, {"evict", `\breason\w+ += "(\w+)"`}, {"nri", `\breason(?:Refused|Pending|Conflict) += "(\w+)"`}, {"node", `\bTaint\w+ += cluster\.Driver \+ "(/[\w-]+)"`},
	} {
		files, err := filepath.Glob("../" + c.folder + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(c.pattern).FindAllStringSubmatch(string(source), -1) {
				found++
				if !strings.Contains(string(text), m[1]) {
					t.Errorf("troubleshooting.md does not name %s of %s", m[1], file)
				}
			}
		}
		if found == 0 {
			t.Errorf("%s has no names; the pattern %s no longer matches", c.folder, c.pattern)
		}
	}
}
