// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/view"
)

// testRights tries what each role gives: a user without one, a viewer, and nobody else but the administrator.
func testRights(t *testing.T, s site) {
	kubectlXSched(t)
	as := func(user string, args ...string) (string, error) {
		at := 0
		if args[0] == "xsched" {
			at = 1 // kubectl takes no flag before the name of a plugin
		}
		return s.c.TryKubectl("", slices.Insert(slices.Clone(args), at, "--kubeconfig", userConfig(user))...)
	}
	if text, err := as("viewer", "xsched", "list"); err == nil || !strings.Contains(err.Error(), "xsched-viewer") {
		t.Errorf("a user without roles lists: %s, %v", text, err)
	}
	// As docs/kubernetes/install.md says.
	s.c.Kubectl(t, "-n", chartSpace, "create", "rolebinding", "xsched-viewer", "--role=xsched-viewer", "--user=viewer")
	unbind := func() {
		_, _ = s.c.TryKubectl("", "-n", chartSpace, "delete", "rolebinding", "xsched-viewer", "--ignore-not-found")
	}
	t.Cleanup(unbind)
	eventually(t, "the role is in force", func() bool { _, err := as("viewer", "xsched", "list"); return err == nil })
	for _, args := range []string{"list", "list --json", "top --once", "status", "status --json", "logs " + NodeName} {
		if text, err := as("viewer", append([]string{"xsched"}, strings.Fields(args)...)...); err != nil {
			t.Errorf("a viewer's %s: %s, %v", args, text, err)
		}
	}
	if text, err := as("viewer", "xsched", "list", "-l", "a=b"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("labels of all pods without the role for the cluster: %s, %v", text, err)
	}
	pod, address := s.daemonPod()
	testForbidden(t, as, pod)
	testTokens(t, s, as, pod)
	testMetricsPort(t, s, pod, address)
	if text, err := s.c.TryKubectl("", "-n", chartSpace, "get", "role", "xsched-node-root"); err == nil {
		t.Errorf("the role for exec exists by default: %s", text)
	}
	unbind()
	eventually(t, "a former viewer is refused", func() bool {
		_, err := as("viewer", "xsched", "list")
		return err != nil && strings.Contains(err.Error(), "xsched-viewer")
	})
	if _, err := as("nobody", "xsched", "list"); err == nil {
		t.Error("another user lists")
	}
}

// testForbidden tries what a viewer may not.
func testForbidden(t *testing.T, as func(user string, args ...string) (string, error), pod string) {
	for _, args := range []string{
		"exec " + pod + " -c daemon -- /usr/bin/xsched policy FIFO", "exec " + pod + " -c node -- /usr/bin/xsched-kube version",
		"exec " + pod + " -c guardian -- /usr/bin/xsched version", "attach " + pod + " -c daemon", "delete pod " + pod,
		"create token xsched", "create token default", "get secrets", "get secret metrics", "create configmap a", "delete daemonset xsched",
		"get --raw /api/v1/namespaces/" + chartSpace + "/pods/" + pod + ":9400/proxy/metrics", "auth can-i create pods/ephemeralcontainers",
		"auth can-i create pods", "auth can-i list pods --all-namespaces", "auth can-i create leases.coordination.k8s.io",
		"create clusterrolebinding a --clusterrole=cluster-admin --user=viewer", "label namespace " + chartSpace + " a=b",
	} {
		if text, err := as("viewer", append([]string{"-n", chartSpace}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error()+text, "orbidden") && strings.TrimSpace(text) != "no" {
			t.Errorf("a viewer may %s: %s, %v", args, text, err)
		}
	}
	if text, err := as("viewer", "xsched", "suspend", "job", "-n", "default"); err == nil {
		t.Errorf("a viewer suspends: %s", text)
	}
}

// forwardAs forwards a port of a pod as a user, and returns its address.
func forwardAs(t *testing.T, user, pod string, port int) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program("kubectl"), "-n", chartSpace, "port-forward", pod, fmt.Sprintf(":%d", port), "--kubeconfig", userConfig(user))
	cmd.Env = environment()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n') // Forwarding from 127.0.0.1:40000 -> 9401
	fields := strings.Fields(line)
	if err != nil || len(fields) < 3 {
		t.Fatalf("kubectl port-forward as %s prints %q, %v", user, line, err)
	}
	return "http://" + fields[2]
}

// request returns the code and the content of an answer; 0: none came.
func request(t *testing.T, method, url, token, body string) (code int, text string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	content, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(content)
}

// testTokens sends every kind of token to the view of the node.
func testTokens(t *testing.T, s site, as func(user string, args ...string) (string, error), pod string) {
	base := forwardAs(t, "viewer", pod, cluster.ViewPort)
	create := func(user, namespace, account, audience string) string {
		t.Helper()
		args := []string{"-n", namespace, "create", "token", account}
		if audience != "" {
			args = append(args, "--audience", audience)
		}
		text, err := as(user, args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(text)
	}
	good := create("viewer", chartSpace, cluster.ViewAccount, cluster.ViewAudience)
	for _, c := range []struct {
		name, method, path, token string
		want                      int
	}{
		{"a viewer's token", http.MethodGet, view.SnapshotPath, good, http.StatusOK},
		{"a viewer's token", http.MethodGet, view.StatusPath, good, http.StatusOK},
		{"a viewer's token", http.MethodGet, view.JournalPath, good, http.StatusOK},
		{"a viewer's token", http.MethodGet, control.Prefix + "/processes", good, http.StatusNotFound},
		{"a change", http.MethodDelete, view.SnapshotPath, good, http.StatusMethodNotAllowed},
		{"no token", http.MethodGet, view.SnapshotPath, "", http.StatusUnauthorized},
		{"a wrong token", http.MethodGet, view.SnapshotPath, "wrong", http.StatusUnauthorized},
		{"a token for the API server", http.MethodGet, view.SnapshotPath, create("viewer", chartSpace, cluster.ViewAccount, ""), http.StatusUnauthorized},
		{"the administrator's own", http.MethodGet, view.SnapshotPath, userToken(t, "admin"), http.StatusUnauthorized},
		{"another audience", http.MethodGet, view.SnapshotPath, create("admin", "default", "default", "example.com"), http.StatusUnauthorized},
		{"an account without the right", http.MethodGet, view.SnapshotPath, create("admin", "default", "default", cluster.ViewAudience), http.StatusForbidden},
		{"the plugin's account", http.MethodGet, view.SnapshotPath, create("admin", chartSpace, "xsched", cluster.ViewAudience), http.StatusForbidden},
	} {
		if code, text := request(t, c.method, base+c.path, c.token, ""); code != c.want || code != http.StatusOK && strings.Contains(text, `"daemon":`) {
			t.Errorf("%s %s with %s: %d %.200s, want %d", c.method, c.path, c.name, code, text, c.want)
		}
	}
	// The API server itself refuses a viewer's token: a node can't use it elsewhere.
	if code, text := askAPI(t, s, good); code != http.StatusUnauthorized {
		t.Errorf("the API server takes a viewer's token: %d %.200s", code, text)
	}
}

// askAPI asks the API server for pods with a token.
func askAPI(t *testing.T, s site, token string) (int, string) {
	t.Helper()
	text, err := s.c.TryKubectl("", "get", "pods", "-n", chartSpace, "--kubeconfig", tokenConfig(t, token))
	if err != nil && strings.Contains(err.Error(), "Unauthorized") {
		return http.StatusUnauthorized, text
	}
	return http.StatusOK, text
}

// testMetricsPort tries to change the policy where the metrics are: with a forwarded port, which ends as a
// connection of root in the pod, and with the token of the metrics.
func testMetricsPort(t *testing.T, s site, pod, address string) {
	before := s.policy()
	const other = `{"name":"FIFO"}`
	base := forwardAs(t, "viewer", pod, metricsPort)
	if code, text := request(t, http.MethodPut, base+control.Prefix+"/policy", "", other); code == http.StatusOK {
		t.Errorf("a viewer sets the policy by a forwarded port: %s", text)
	}
	if code, text := request(t, http.MethodGet, base+control.Prefix+"/processes", "", ""); code == http.StatusOK {
		t.Errorf("a viewer reads without a token by a forwarded port: %.200s", text)
	}
	direct := fmt.Sprintf("http://%s:%d", address, metricsPort)
	if code, text := request(t, http.MethodGet, direct+"/metrics", metricsToken, ""); code != http.StatusOK {
		t.Errorf("the metrics: %d %.200s", code, text)
	}
	if code, text := request(t, http.MethodPut, direct+control.Prefix+"/policy", metricsToken, other); code != http.StatusForbidden {
		t.Errorf("the token of the metrics sets the policy: %d %s", code, text)
	}
	if now := s.policy(); now != before {
		t.Errorf("policy %s, before %s", now, before)
	}
}
