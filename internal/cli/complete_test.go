// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"
)

// TestCompletionOffersNoFiles: a command without arguments offers no file names, and others what fits.
// The script hint.txt has PIDs, which a daemon knows.
func TestCompletionOffersNoFiles(t *testing.T) {
	for line, want := range map[string]string{
		"support-bundle ": ":4",
		"status ":         ":4",
		"policy H":        "HPF\thighest priority first",
		"mode level ":     "2",
		"config ":         "check\t",
		"sta":             "status\t",
		"sim ex":          "yaml", // the extension of a file
		"run -- ./p":      ":0",
	} {
		var out bytes.Buffer
		root := Command()
		root.SetArgs(append([]string{"__complete"}, strings.Split(line, " ")...))
		root.SetOut(&out)
		root.SetErr(&bytes.Buffer{})
		if err := root.Execute(); err != nil || !strings.Contains("\n"+out.String(), "\n"+want) {
			t.Errorf("%q: %v\n%s", line, err, out.String())
		}
	}
}
