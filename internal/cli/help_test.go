// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"regexp"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// reValueName is the name of a flag's value in the help text.
var reValueName = regexp.MustCompile(`^[A-Za-z0-9_:,|=\[\].-]*$`)

// reOddHelp finds Go's forms of values, and 0 twice in a range.
var reOddHelp = regexp.MustCompile(`default \[.+\]|\b0s? to .*, or 0\b|[0-9]h[0-9]+m[0-9]+s`)

// TestHelpValueNames: back-quotes in the text of a flag name its value, so that they must not enclose
// anything else, such as a command. Each command belongs to a group.
func TestHelpValueNames(t *testing.T) {
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); !reValueName.MatchString(name) || len(name) > 1 && name[0] == '-' {
				t.Errorf("%s --%s: the value is named %q", c.CommandPath(), f.Name, name)
			}
		})
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if odd := reOddHelp.FindString(f.Usage + " (default " + f.DefValue + ")"); odd != "" {
				t.Errorf("%s --%s: nobody writes %q", c.CommandPath(), f.Name, odd)
			}
			if watch := f.Name == "watch"; watch && (f.Value.Type() != "bool" || c.Flags().Lookup("interval") == nil) {
				t.Errorf("%s --watch is not a switch with --interval", c.CommandPath())
			}
		})
		for _, sub := range c.Commands() {
			if !sub.Hidden && !c.HasParent() && sub.GroupID == "" && len(c.Groups()) > 0 {
				t.Errorf("%s is in no group", sub.CommandPath())
			}
			look(sub)
		}
	}
	look(newRoot(&app{}))
}
