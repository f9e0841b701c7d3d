// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"xsched/internal/control"
	"xsched/internal/kube/fleetview"
	"xsched/internal/top"
)

// TestFleetTable checks the rows of tenants and of nodes that do not answer. A tenant chooses its
// command line, which must not control the terminal.
func TestFleetTable(t *testing.T) {
	fleet := fleetview.Fleet{Nodes: []fleetview.Node{
		{Name: "a", Snapshot: &top.Snapshot{List: control.List{Processes: []control.Process{{
			PID: 7, Namespace: "red", Pod: "web", PodContainer: "main", Class: "gpu-latency", State: control.StateRunning,
			Priority: 10, GPUShare: 0.25, Command: "evil\x1b[2J\nname",
		}, {PID: 8}}}}},
		{Name: "b", Error: "the pod is pending"},
	}}
	var out bytes.Buffer
	writeTenants(&out, &fleet, 0)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines, want titles, two tenants and an error:\n%s", len(lines), out.String())
	}
	if got := strings.Join(strings.Fields(lines[2])[:9], " "); got != "a red web main gpu-latency 7 10 running 25%" {
		t.Errorf("tenant: %q", got)
	}
	if got := strings.Join(strings.Fields(lines[1])[:6], " "); got != "a - - - - 8" {
		t.Errorf("tenant outside a pod: %q", got)
	}
	if lines[3] != "error: node b: the pod is pending" || strings.Contains(out.String(), "\x1b") {
		t.Errorf("unexpected output:\n%q", out.String())
	}
	if err := unanswered(&fleet); err == nil || err.Error() != "node b does not answer: the pod is pending" {
		t.Errorf("error %v", err)
	}
}

func TestFleetStatus(t *testing.T) {
	all := []nodeStatus{
		{Node: "a", parsed: top.Status{Healthy: true, Policy: "HPF", Mode: "live", Programs: map[string]int{"running": 2, "idle": 1}}},
		{Node: "b", Error: "exec failed"},
		{Node: "c", parsed: top.Status{Problems: []top.Problem{{Cause: "an operation is stuck", Remedy: "see the log"}}}},
		{Node: "d", parsed: top.Status{Healthy: true, Policy: "HPF", Mode: "level", ModeLevel: 2}},
	}
	if n := unhealthy(all); n != 2 {
		t.Errorf("%d nodes with problems, want 2", n)
	}
	var out bytes.Buffer
	writeStatus(&out, all, 0)
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"NODE HEALTH VERSION POLICY MODE GPUS PROGRAMS", "a ok - HPF live 0 3", "b no answer - - - - -", "c problems - - - 0 0", "d ok - HPF level 2 0 0",
		"problem: node b: exec failed", "problem: node c: an operation is stuck; see the log",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestLogsArguments(t *testing.T) {
	if got := logsArguments(true, "10m", []string{"fault", "change"}, true); strings.Join(got, " ") != "logs --follow --since=10m --kind=fault,change --json" {
		t.Errorf("arguments %q", got)
	}
}

func TestCleanupNeedsFolders(t *testing.T) {
	var stdout, stderr bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stderr}
	if code := a.run(a.root(), []string{"cleanup"}); code != exitFailure || !strings.Contains(stderr.String(), "nothing to remove") {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
}
