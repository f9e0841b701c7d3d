// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/kube/fleetview"
)

// The daemon's metrics in the network of pods.
const (
	metricsPort  = 9400
	metricsToken = "not-a-secret-of-anybody"
)

// metricsSettings of the chart open the port for pods of namespace default.
var metricsSettings = fmt.Sprintf(`metrics.port=%d,metrics.tokenSecret=metrics,metrics.allowFrom[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=default`, metricsPort)

// metricsSecret must be there before the chart.
var metricsSecret = fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: metrics, namespace: %s}, stringData: {token: %s}}", chartSpace, metricsToken)

// daemonPod returns the name and the address of the node's pod of the DaemonSet.
func (s site) daemonPod() (name, address string) {
	s.t.Helper()
	text := s.c.Kubectl(s.t, "get", "pods", "-n", chartSpace, "-l", "app.kubernetes.io/component=node", "--field-selector", "status.phase=Running",
		"-o", "jsonpath={.items[0].metadata.name} {.items[0].status.podIP}")
	name, address, _ = strings.Cut(text, " ")
	return name, address
}

// testMetrics scrapes the daemon from a pod while both pods work, and reads the daemon's journal.
func testMetrics(t *testing.T, l load) {
	l.c.Apply(t, busyboxPod("scraper", untilEnd))
	l.c.WaitPod(t, "default", "scraper", "is ready", Running)
	_, address := l.daemonPod()
	url := fmt.Sprintf("http://%s:%d/metrics", address, metricsPort)
	scrape := func(token string) string {
		t.Helper()
		return l.c.Exec(t, "default", "scraper", "sh", "-c", fmt.Sprintf("wget -q -O - --header 'Authorization: Bearer %s' %s 2>&1; true", token, url))
	}
	if got := scrape("wrong"); !strings.Contains(got, "403") || strings.Contains(got, "xs_") {
		t.Errorf("a scrape with a wrong token: %.300s", got)
	}
	// The bridge of these tests enforces no policy: what counts is whom it selects, and whom it lets in.
	if got := l.c.Kubectl(t, "get", "networkpolicy", "xsched", "-n", chartSpace, "-o", "jsonpath={.spec.podSelector.matchLabels.app\\.kubernetes\\.io/component} {.spec.policyTypes} {.spec.ingress}"); got !=
		`node ["Ingress"] [{"from":[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"default"}}}],"ports":[{"port":9400,"protocol":"TCP"}]}]` {
		t.Errorf("the network policy: %s", got)
	}

	for kind, priority := range map[string]float64{"latency": 10, "batch": -10} {
		before, onGPU := l.process("default", kind), l.onGPU(kind)
		text := scrape(metricsToken)
		after := l.process("default", kind)
		if before == nil || after == nil {
			t.Fatalf("the daemon has no program of pod %s", kind)
		}
		value := func(name string) float64 {
			t.Helper()
			return series(t, text, name, `namespace="default"`, `pod="`+kind+`"`, `container="tenant"`, `class="gpu-`+kind+`"`)
		}
		value("xs_tenant_info")
		if got := value("xs_priority"); got != priority {
			t.Errorf("priority of pod %s: %g", kind, got)
		}
		if got := value("xs_launches_total"); got < float64(onGPU.Kernels) {
			t.Errorf("pod %s launched %g kernels, and the GPU executed %d before", kind, got, onGPU.Kernels)
		}
		if got := value("xs_tenant_preemptions_total"); got < float64(before.Preemptions) || got > float64(after.Preemptions) {
			t.Errorf("pod %s has %g preemptions; the daemon's list has %d before and %d after the scrape", kind, got, before.Preemptions, after.Preemptions)
		}
		if ran, lost := value("xs_tenant_run_seconds_total"), value("xs_tenant_lost_seconds_total"); ran <= 0 || kind == "batch" && lost <= 0 {
			t.Errorf("pod %s ran for %g s and lost %g s", kind, ran, lost)
		}
	}
	testJournal(t, l, func(args ...string) string {
		t.Helper()
		pod, _ := l.daemonPod()
		return l.c.Kubectl(t, append([]string{"exec", "-n", chartSpace, pod, "-c", "daemon", "--", "xsched"}, args...)...)
	})
}

// series returns the value of the one series with this name and these labels.
func series(t *testing.T, text, name string, labels ...string) float64 {
	t.Helper()
	var found []string
lines:
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name+"{")
		if !ok {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(","+rest, ","+label) {
				continue lines
			}
		}
		found = append(found, strings.TrimSpace(rest[strings.LastIndex(rest, "}")+1:]))
	}
	if len(found) != 1 {
		t.Fatalf("%d series %s with %v in\n%s", len(found), name, labels, text)
	}
	value, err := strconv.ParseFloat(found[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// testJournal checks that the journal, as `logs` prints it, names the pods.
func testJournal(t *testing.T, l load, run func(args ...string) string) {
	t.Helper()
	var text string
	defer func() {
		if t.Failed() {
			t.Logf("the journal:\n%s", text)
		}
	}()
	entries := func(kind string) (all []control.JournalEntry) {
		t.Helper()
		text = run("logs", "--json", "--kind", kind)
		for line := range strings.Lines(text) {
			var e control.JournalEntry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("a line of the journal: %v: %s", err, line)
			}
			all = append(all, e)
		}
		return all
	}
	for kind := range kernels {
		if !slices.ContainsFunc(entries(control.JournalJoined), func(e control.JournalEntry) bool { return e.Pod == "default/"+kind+"/tenant" }) {
			t.Errorf("the journal does not tell that pod %s joined", kind)
		}
	}
	eventually(t, "the journal tells that the latency pod preempted the batch pod", func() bool {
		return slices.ContainsFunc(entries(control.JournalPreemption), func(e control.JournalEntry) bool {
			return e.Pod == "default/batch/tenant" && e.ByPod == "default/latency/tenant" && e.Count > 0
		})
	})
	if text := run("logs", "--kind", "preemption"); !strings.Contains(text, "default/batch") || !strings.Contains(text, "default/latency") {
		t.Errorf("the journal as text: %s", text)
	}
}

// testViewer uses `kubectl xsched` while both pods work, as a user who has nothing but the viewer's roles.
func testViewer(t *testing.T, l load) {
	kubectlXSched(t)
	try := func(args ...string) (string, error) {
		return l.c.TryKubectl("", append(append([]string{"xsched"}, args...), "--kubeconfig", userConfig("viewer"))...)
	}
	must := func(args ...string) string {
		t.Helper()
		text, err := try(args...)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if text, err := try("list"); err == nil || !strings.Contains(err.Error(), "xsched-viewer") {
		t.Errorf("a user without roles: %s, %v", text, err)
	}
	// As docs/kubernetes/install.md says.
	l.c.Kubectl(t, "-n", chartSpace, "create", "rolebinding", "xsched-viewer", "--role=xsched-viewer", "--user=viewer")
	t.Cleanup(func() { l.c.Kubectl(t, "-n", chartSpace, "delete", "rolebinding", "xsched-viewer") })
	l.c.Kubectl(t, "create", "clusterrolebinding", "xsched-viewer", "--clusterrole=xsched-viewer", "--user=viewer")
	t.Cleanup(func() { l.c.Kubectl(t, "delete", "clusterrolebinding", "xsched-viewer") })
	eventually(t, "the roles are in force", func() bool { _, err := try("list"); return err == nil })
	before := l.process("default", "batch")
	if before == nil {
		t.Fatal("the daemon has no program of the batch pod")
	}
	var fleet fleetview.Fleet
	asked := time.Now().UnixNano()
	eventually(t, "a snapshot that no earlier viewer got", func() bool {
		fleet = fleetview.Fleet{}
		if err := json.Unmarshal([]byte(must("top", "--once", "--json")), &fleet); err != nil {
			t.Fatal(err)
		}
		return len(fleet.Nodes) != 1 || fleet.Nodes[0].Snapshot == nil || fleet.Nodes[0].Snapshot.TimeNS > asked
	})
	if len(fleet.Nodes) != 1 || fleet.Nodes[0].Name != NodeName || fleet.Nodes[0].Error != "" {
		t.Fatalf("nodes %+v", fleet.Nodes)
	}
	seen := map[string]fleetview.Tenant{}
	for _, p := range fleet.Tenants() {
		if p.Namespace == "default" {
			seen[p.Pod] = p
		}
	}
	for kind, priority := range map[string]int32{"latency": 10, "batch": -10} {
		if p := seen[kind]; p.Node != NodeName || p.PodContainer != "tenant" || p.Class != "gpu-"+kind || p.Priority != priority || p.Counters.Launches == 0 {
			t.Errorf("pod %s in top: %+v", kind, p)
		}
	}
	if p := seen["batch"]; p.PID != before.PID || p.Preemptions < before.Preemptions || p.LostNS < before.LostNS {
		t.Errorf("the batch pod in top: %+v, before %+v", p, before)
	}
	for _, args := range [][]string{{"top", "--once"}, {"list"}, {"list", "-n", "default"}} {
		if text := must(args...); !hasRow(text, NodeName, "latency") || !hasRow(text, NodeName, "batch") {
			t.Errorf("%v:\n%s", args, text)
		}
	}
	// Labels are the API server's, so -l needs the role for the cluster.
	l.c.Kubectl(t, "label", "pod", "batch", "team=research")
	t.Cleanup(func() { l.c.Kubectl(t, "label", "pod", "batch", "team-") })
	if text := must("list", "-l", "team=research"); !hasRow(text, NodeName, "batch") || hasRow(text, NodeName, "latency") {
		t.Errorf("pods with a label:\n%s", text)
	}
	if text := must("status"); !hasRow(text, NodeName, "ok") {
		t.Errorf("status:\n%s", text)
	}
	testJournal(t, l, func(args ...string) string {
		t.Helper()
		return must(append([]string{"logs", NodeName}, args[1:]...)...)
	})
}

// kubectlXSched lets kubectl find our plugin.
func kubectlXSched(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(product(t, "bin/xsched-kube"), filepath.Join(dir, "kubectl-xsched")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// hasRow reports whether a line has all of these words.
func hasRow(text string, words ...string) bool {
	for line := range strings.Lines(text) {
		n := 0
		for _, word := range words {
			if strings.Contains(line, word) {
				n++
			}
		}
		if n == len(words) {
			return true
		}
	}
	return false
}
