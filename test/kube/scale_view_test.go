// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"xsched/internal/control"
	daemonclient "xsched/internal/control/client"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/view"
)

// fleetTop is what `kubectl xsched top --once --json` prints.
type fleetTop struct {
	Nodes []struct {
		Node, Error string
		Snapshot    *struct{ Devices []struct{ ID string } }
	}
}

// viewFleet asks all nodes by `kubectl xsched`. Each pod of the DaemonSet answers by a view of its own, which asks
// the one real daemon of this machine. Then a node dies.
func viewFleet(t *testing.T, f *figures, client kubernetes.Interface, nodes int) {
	t.Helper()
	if err := overlay("/usr/bin"); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"/usr/bin/xsched": "bin/xsched", "/usr/bin/kubectl-xsched": "bin/xsched-kube"} {
		if err := os.Symlink(product(t, target), link); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	h := &host{t: t}
	if err := os.MkdirAll(daemonDir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(daemonDir) })
	h.start("serve", "xsched", "serve", "--virtual", "--devices", fmt.Sprint(scaleGPUs), "--dir", daemonDir)
	eventually(t, "the daemon answers", func() bool {
		_, err := f.run("/usr/bin/xsched", "policy", "--dir", daemonDir)
		return err == nil
	})
	serveViews(t, client)
	f.Commands = nil
	ask := func(timeout string, args ...string) (string, error) {
		return f.run("/usr/bin/kubectl-xsched", append(args, "--timeout", timeout, "--kubeconfig", userConfig("admin"))...)
	}
	const patient = "2m" // one machine plays all nodes
	text, err := ask(patient, "top", "--once", "--json")
	if err != nil {
		t.Fatal(err)
	}
	if top := readTop(t, text, nodes); len(top.silent()) > 0 {
		t.Errorf("kubectl xsched top: no answer of %v", top.silent())
	}
	if text, err = ask(patient, "top", "--once"); err != nil || !strings.Contains(text, fmt.Sprintf("idle GPUs: %d\n", nodes*scaleGPUs)) {
		t.Errorf("kubectl xsched top: %v:\n%s", err, text)
	}
	if text, err = ask(patient, "list"); err != nil || !strings.Contains(text, "no tenants") {
		t.Errorf("kubectl xsched list: %v:\n%s", err, text)
	}
	if text, err = ask(patient, "status"); err != nil {
		t.Error(err)
	}
	if answered := strings.Count(text, "\n") - 1; answered != nodes {
		t.Errorf("kubectl xsched status shows %d of %d nodes", answered, nodes)
	}

	dead := simulatedName(nodes / 2)
	killNode(t, client, dead)
	text, err = ask("15s", "top", "--once", "--json")
	if err == nil {
		t.Errorf("kubectl xsched top does not fail without %s", dead)
	}
	top := readTop(t, text, nodes)
	if why := top.silent()[dead]; why != "no answer within 15s" {
		t.Errorf("kubectl xsched top, dead node %s: %q", dead, why)
	}
	t.Logf("kubectl xsched top with a dead node: %d of %d nodes answer", nodes-len(top.silent()), nodes)
}

// serveViews answers each connection as the view of another node: with reviews and limits of its own.
func serveViews(t testing.TB, client kubernetes.Interface) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(cluster.ViewPort)))
	if err != nil {
		t.Fatal(err)
	}
	daemon := daemonclient.New(filepath.Join(daemonDir, control.ControlSocket))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		view.New(NodeName, "", daemon, client, slog.New(slog.DiscardHandler)).ServeHTTP(w, r)
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
}

func readTop(t testing.TB, text string, nodes int) (top fleetTop) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &top); err != nil {
		t.Fatal(err)
	}
	if len(top.Nodes) != nodes {
		t.Errorf("kubectl xsched top shows %d of %d nodes", len(top.Nodes), nodes)
	}
	return top
}

// silent returns the nodes without an answer, and why.
func (f fleetTop) silent() map[string]string {
	out := map[string]string{}
	for _, n := range f.Nodes {
		if n.Error != "" || n.Snapshot == nil {
			out[n.Node] = n.Error
		}
	}
	return out
}

// killNode moves a node's kubelet to a port that accepts connections and never says a word.
func killNode(t testing.TB, client kubernetes.Interface, name string) {
	t.Helper()
	mute, err := net.Listen("tcp", net.JoinHostPort(nodeAddress, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	port := mute.Addr().(*net.TCPAddr).Port
	if _, err := client.CoreV1().Nodes().Patch(context.Background(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, port), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}
