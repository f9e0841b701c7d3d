// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"xsched/internal/health"
	"xsched/internal/kube/node"
)

// TestHealthCommand: the exit code is that of a probe, and the output names the part.
func TestHealthCommand(t *testing.T) {
	for _, c := range []struct {
		name     string
		vital    bool
		age      time.Duration
		args     string
		code     int
		contains string
	}{
		{"works", true, 0, "", 0, "ok\n"},
		{"waits for the API server", false, time.Hour, "", 0, "ok\nwaits for the API server: the last sign of life was 1h0m0s ago"},
		{"reads of claims", true, time.Hour, "", exitFailure, "xsched-kube: reads of claims: the last sign of life was 1h0m0s ago"},
		{"reads of claims", true, time.Hour, "--json", exitFailure, `"late": true`},
		{"works", true, 0, "--ready", 0, "ok\n"},
		{"answers of the daemon", false, time.Hour, "--ready", exitFailure, "xsched-kube: answers of the daemon: the last sign of life was 1h0m0s ago"},
	} {
		kubelet := t.TempDir()
		if err := os.MkdirAll(pluginFolder(kubelet), 0o750); err != nil {
			t.Fatal(err)
		}
		var output bytes.Buffer
		probe := func() int {
			output.Reset()
			a := &app{stdout: &output, stderr: &output}
			return a.run(a.root(), append([]string{"health", "--kubelet-dir", kubelet}, strings.Fields(c.args)...))
		}
		if code := probe(); code != exitFailure || !strings.Contains(output.String(), "the node plugin does not answer") {
			t.Errorf("without a plugin: %d, %q", code, output.String())
		}
		var m health.Monitor
		m.Watch(c.name, time.Minute, c.vital, func() time.Duration { return c.age })
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- m.Serve(ctx, node.HealthSocket(pluginFolder(kubelet))) }()
		var code int
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			if code = probe(); !strings.Contains(output.String(), "does not answer") {
				break
			}
		}
		if code != c.code || !strings.Contains(output.String(), c.contains) {
			t.Errorf("%+v: %d, %q", c, code, output.String())
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// TestProbesAskForHealth: every probe of the chart asks whether the parts still work. A command that any living
// socket answers would not notice an engine that hangs.
func TestProbesAskForHealth(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/helm/xsched/templates/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	probes := regexp.MustCompile(`(\w+Probe):\s*\n\s*(.*)`).FindAllSubmatch(text, -1)
	if len(probes) < 8 {
		t.Errorf("%d probes", len(probes))
	}
	for _, p := range probes {
		if !regexp.MustCompile(`^exec: \{command: \[/usr/bin/xsched(-kube)?, health[],]`).Match(p[2]) {
			t.Errorf("the %s runs %s", p[1], p[2])
		}
	}
}
