// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"xsched/internal/kube/classes"
	"xsched/internal/kube/cluster"
)

const (
	chart       = root + "/deploy/helm/xsched"
	chartSpace  = "xsched-system"
	versionFile = root + "/shim/include/xsched/version.h"
)

// helm runs helm for the chart in its namespace.
func helm(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return output(ctx, "", "helm", append(args, "--namespace", chartSpace)...)
}

func helmMust(t *testing.T, args ...string) string {
	t.Helper()
	text, err := helm(args...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestChartRefusesMistakes checks lint, the schema and the conditions that the templates state.
func TestChartRefusesMistakes(t *testing.T) {
	helmMust(t, "lint", chart, "--strict")
	for _, c := range []struct{ set, want string }{
		{"bogus=1", "'bogus' not allowed"},
		{"daemon.logLevel=loud", "daemon/logLevel"},
		{"deviceClasses.x.parameters.priorty=1", "'priorty' not allowed"},
		{"terminationGracePeriodSeconds=5", "terminationGracePeriodSeconds"},
		{"metrics.port=9400", "metrics.tokenSecret"},
		{"daemon.deviceAccess=runtimeClass", "daemon.runtimeClassName"},
		{"nri.classes.fast.priorty=1", "'priorty' not allowed"},
		{"nri.priorityClasses.high=fast", "needs nri.classes"},
		{"daemon.extraEnv[0].name=A-B", "daemon/extraEnv/0"},
		{"node.memory=80", "node/memory"},
		{"gpuNodeLabels={a b}", "gpuNodeLabels/0"},
		{"metrics.podMonitor.create=true", "needs metrics.port"},
		{"deviceClasses.x.namespaceSelector.matchExpressions[0].key=a", "namespaceSelector"},
		{"deviceClasses.x.namespaces={it's}", "deviceClasses/x/namespaces/0"},
		{"deviceClasses.x.extendedResourceName=fast", "extendedResourceName"},
		{"updateStrategy.maxUnavailable=a", "maxUnavailable"},
		{"eviction.most=0", "eviction/most"},
		{"eviction.enabled=true,dra.enabled=false", "it needs dra.enabled"},
	} {
		if text, err := helm("template", "xsched", chart, "--set", c.set); err == nil || !strings.Contains(text+err.Error(), c.want) {
			t.Errorf("--set %s: %v; want an error with %q", c.set, err, c.want)
		}
	}
}

// TestChartInAnotherNamespace checks that the chart names no namespace of its own: its programs learn theirs.
func TestChartInAnotherNamespace(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	text, err := output(ctx, "", "helm", "template", "xsched", chart, "--namespace", "gpu-scheduler")
	if err != nil || strings.Contains(text, chartSpace) {
		t.Errorf("the chart in gpu-scheduler: %v\n%s", err, text)
	}
	if n := strings.Count(text, "{name: "+cluster.NamespaceVariable+", valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}"); n != 2 {
		t.Errorf("%d containers learn their namespace; the plugin and the uninstall need it", n)
	}
}

// TestChartArguments checks what the values make of the containers.
func TestChartArguments(t *testing.T) {
	render := func(args ...string) string {
		t.Helper()
		return helmMust(t, append([]string{"template", "xsched", chart}, args...)...)
	}
	has := func(text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in\n%s", w, text)
			}
		}
	}
	has(render("--set", "paths.nri=/run/nri"), "- --nri-socket=/run/nri/nri.sock\n")
	has(render("--set", "node.memory=80Gi"), "- --memory=80Gi\n")
	if text := render(); strings.Contains(text, "--memory") {
		t.Errorf("memory without a value:\n%s", text)
	}
	if off := render("--set", "nri.enabled=false"); !strings.Contains(off, "- --nri-socket=\n") || strings.Contains(off, "/var/run/nri") {
		t.Errorf("without NRI:\n%s", off)
	}
	has(render("--set", "daemon.deviceAccess=runtimeClass,daemon.runtimeClassName=nvidia,daemon.extraEnv[0].name=A,daemon.extraEnv[0].value=b,node.seLinuxOptions.type=spc_t"),
		"runtimeClassName: nvidia\n", "{name: NVIDIA_VISIBLE_DEVICES, value: all}", "{name: NVIDIA_DRIVER_CAPABILITIES, value: utility}", "- name: A\n", "type: spc_t\n")
	// The job that uninstalls needs no GPU, and the last node with one may be gone.
	split := func(text string) (job, rest string) {
		t.Helper()
		before, after, ok := strings.Cut(text, "\nkind: Job\n")
		if !ok {
			t.Fatalf("no job in\n%s", text)
		}
		job, after, _ = strings.Cut(after, "\n---")
		return job, before + after
	}
	job, rest := split(render("--set", `nodeSelector.gpu=yes,nodeSelector.kubernetes\.io/arch=amd64,tolerations[0].key=gpu-taint`))
	has(job, "key: gpu-taint\n", "nodeSelector:\n        kubernetes.io/arch: amd64\n")
	if strings.Contains(job, "gpu: ") || strings.Count(rest, "gpu: \"yes\"")+strings.Count(rest, "gpu: yes") != 2 {
		t.Errorf("job %s\nothers %s", job, rest)
	}
	text := render("--set", "nri.classes.fast.priority=5,nri.classes.fast.namespaces={serving},nri.priorityClasses.high=fast")
	has(text, "- --classes=/etc/xsched-classes/classes.yaml\n")
	_, file, _ := strings.Cut(text, "classes.yaml: |\n")
	file, _, _ = strings.Cut(file, "\n---")
	parsed, err := classes.Parse([]byte(strings.ReplaceAll("\n"+file, "\n    ", "\n")))
	if err != nil || *parsed.Classes["fast"].Priority != 5 || parsed.PriorityClasses["high"] != "fast" {
		t.Errorf("classes %+v, %v", parsed, err)
	}
}

// release returns the version of this tree.
func release() (string, error) {
	header, err := os.ReadFile(versionFile)
	var parts []string
	for _, m := range regexp.MustCompile(`XS_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)`).FindAllStringSubmatch(string(header), -1) {
		parts = append(parts, m[1])
	}
	return strings.Join(parts, "."), err
}

func TestChartHasTheRelease(t *testing.T) {
	version, err := release()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(chart + "/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"version", "appVersion"} {
		if want := "\n" + field + ": " + version + "\n"; !strings.Contains(string(text), want) {
			t.Errorf("Chart.yaml has no line %q", strings.TrimSpace(want))
		}
	}
}

// TestChartObjects installs the chart's objects in the API server, checks what the plugin may do with the
// token of its pod, and uninstalls them. No kubelet runs: hooks and pods are another test's.
func TestChartObjects(t *testing.T) {
	c := StartAPI(t)
	_, _ = c.TryKubectl("", "create", "namespace", chartSpace) // may be there, from another test
	c.Apply(t, strings.ReplaceAll(leftCleanup, "SPACE", chartSpace))
	helmMust(t, "install", "xsched", chart, "--create-namespace", "--set", "virtual.enabled=true")
	if text, err := c.TryKubectl("", "get", "daemonset", "xsched-cleanup", "-n", chartSpace); err == nil {
		t.Errorf("the cleanup of an earlier uninstall is left: it would remove the new files: %s", text)
	}
	t.Cleanup(func() { _, _ = helm("uninstall", "xsched", "--no-hooks", "--ignore-not-found") })
	// Every object of the hooks, and the DaemonSet in it, is valid, too.
	hooks := helmMust(t, "template", "xsched", chart, "--set", "virtual.enabled=true", "--show-only", "templates/uninstall.yaml")
	if _, err := c.TryKubectl(hooks, "apply", "--dry-run=server", "-f", "-"); err != nil {
		t.Error(err)
	}
	_, cleanup, _ := strings.Cut(hooks, "cleanup.yaml: |\n")
	cleanup, _, _ = strings.Cut(cleanup, "\n---")
	if _, err := c.TryKubectl(strings.ReplaceAll("\n"+cleanup, "\n    ", "\n"), "apply", "--dry-run=server", "-f", "-"); err != nil {
		t.Error(err)
	}

	c.Apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: chart-1}
---
apiVersion: v1
kind: Node
metadata: {name: chart-2}
---
apiVersion: v1
kind: Pod
metadata: {name: plugin, namespace: %s}
spec: {nodeName: chart-1, serviceAccountName: xsched, automountServiceAccountToken: false, containers: [{name: main, image: none}]}
`, chartSpace))
	t.Cleanup(func() { c.Kubectl(t, "-n", chartSpace, "delete", "pod", "plugin", "--force", "--grace-period=0") }) // no kubelet ends it
	plugin := tokenConfig(t, c.Kubectl(t, "-n", chartSpace, "create", "token", "xsched", "--bound-object-kind=Pod", "--bound-object-name=plugin"))
	unbound := tokenConfig(t, c.Kubectl(t, "-n", chartSpace, "create", "token", "xsched"))
	// A policy is in force some time after it was created.
	eventually(t, "the admission policy is in force", func() bool {
		_, err := c.TryKubectl(chartSlice("probe", "gpu.xsched.dev", "chart-2"), "create", "--dry-run=server", "-f", "-", "--kubeconfig", plugin)
		return err != nil && strings.Contains(err.Error(), "own node")
	})
	for _, s := range []struct{ config, name, driver, node, want string }{
		{plugin, "chart-own", "gpu.xsched.dev", "chart-1", ""},
		{plugin, "chart-other", "gpu.xsched.dev", "chart-2", "the plugin of node chart-1 may only write slices of its own node"},
		{plugin, "chart-driver", "gpu.example.com", "chart-1", "only write slices of the driver gpu.xsched.dev"},
		{unbound, "chart-unbound", "gpu.xsched.dev", "chart-1", "names no node"},
	} {
		_, err := c.TryKubectl(chartSlice(s.name, s.driver, s.node), "create", "-f", "-", "--kubeconfig", s.config)
		if s.want == "" && err != nil || s.want != "" && (err == nil || !strings.Contains(err.Error(), s.want)) {
			t.Errorf("slice %s: %v; want %q", s.name, err, s.want)
		}
	}
	c.Apply(t, chartSlice("chart-admin", "gpu.xsched.dev", "chart-2"))
	if _, err := c.TryKubectl("", "delete", "resourceslice", "chart-admin", "--kubeconfig", plugin); err == nil {
		t.Error("a plugin deleted the slice of another node")
	}
	if _, err := c.TryKubectl("", "delete", "resourceslice", "chart-own", "--kubeconfig", plugin); err != nil {
		t.Error(err)
	}
	for _, right := range []string{"get secrets", "list resourceclaims", "create pods", "create pods/exec", "update nodes", "get configmaps"} {
		if text, err := c.TryKubectl("", append([]string{"auth", "can-i", "--all-namespaces", "--kubeconfig", plugin}, strings.Fields(right)...)...); err == nil {
			t.Errorf("the plugin may %s: %s", right, text)
		}
	}

	helmMust(t, "uninstall", "xsched", "--no-hooks")
	left := c.Kubectl(t, "get", "daemonsets,serviceaccounts,roles,rolebindings,secrets,jobs", "-n", chartSpace, "-o", "name") +
		c.Kubectl(t, "get", "clusterroles,clusterrolebindings,deviceclasses,validatingadmissionpolicies,validatingadmissionpolicybindings", "-o", "name")
	for line := range strings.Lines(left) {
		if strings.Contains(line, "xsched") || strings.Contains(line, "gpu-") || strings.Contains(line, "helm") {
			t.Errorf("left after the uninstall: %s", line)
		}
	}
}

// leftCleanup is what a failed uninstall may leave.
const leftCleanup = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: xsched-cleanup, namespace: SPACE}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: main, image: none}]}
`

func chartSlice(name, driver, node string) string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: %s}
spec: {driver: %s, nodeName: %s, pool: {name: %s, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}]}
`, name, driver, node, name)
}

// tokenConfig writes a kubeconfig file with a token.
func tokenConfig(t *testing.T, token string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(userConfig("admin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.Token, user.ClientCertificate, user.ClientKey = strings.TrimSpace(token), "", ""
	}
	file := t.TempDir() + "/config"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}
