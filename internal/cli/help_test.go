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
		for _, sub := range c.Commands() {
			if !sub.Hidden && !c.HasParent() && sub.GroupID == "" && len(c.Groups()) > 0 {
				t.Errorf("%s is in no group", sub.CommandPath())
			}
			look(sub)
		}
	}
	look(newRoot(&app{}))
}
