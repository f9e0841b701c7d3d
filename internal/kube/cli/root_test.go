// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string // parts
	}{
		{"version", 0, "xsched-kube development", ""},
		{"--version", 0, "xsched-kube development\n", ""},
		{"", 0, "Available Commands", ""},
		{"dance", exitUsage, "", "xsched-kube: unknown command \"dance\"; see `xsched-kube --help`\n"},
		{"version --json", exitUsage, "", "see `xsched-kube version --help`\n"},
	} {
		var stdout, stderr bytes.Buffer
		a := &app{stdout: &stdout, stderr: &stderr}
		if code := a.run(a.root(), strings.Fields(c.args)); code != c.code {
			t.Errorf("%q: exit code %d, want %d", c.args, code, c.code)
		}
		if !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%q printed %q and %q", c.args, stdout.String(), stderr.String())
		}
		if strings.Count(stderr.String(), "\n") > 1 {
			t.Errorf("%q: error has several lines: %q", c.args, stderr.String())
		}
	}
}

func TestPluginName(t *testing.T) {
	var stdout bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stdout}
	if code := a.run(a.plugin(), nil); code != 0 || !strings.Contains(stdout.String(), "kubectl xsched [command]") {
		t.Errorf("exit code %d, help:\n%s", code, stdout.String())
	}
}
