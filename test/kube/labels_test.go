// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// labelClasses are the classes without a file, and one for a PriorityClass.
const labelClasses = `
classes:
  latency: {priority: 10, namespaceSelector: {matchLabels: {xsched.dev/allow-latency: "true"}}}
  batch: {priority: -10, namespaceSelector: {}}
priorityClasses: {serving-critical: latency}
`

// startXSched starts a daemon with a virtual GPU and the node plugin until the test ends.
func startXSched(t *testing.T) *client.Client {
	t.Helper()
	classes := filepath.Join(t.TempDir(), "classes.yaml")
	if err := os.WriteFile(classes, []byte(labelClasses), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := "/run/xsched"
	bin, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"xsched", "serve", "--virtual", "--dir", dir, "--no-state"},
		{"xsched-kube", "node", "--node-name", NodeName, "--dir", dir, "--kubeconfig", userConfig("admin"), "--cdi-dir", CDIDir, "--nri-socket", NRISocket, "--classes", classes},
	} {
		log, err := os.Create(path("log", args[0]+".log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(bin, args[0]), args[1:]...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Signal(os.Interrupt)
			_ = cmd.Wait()
			_ = log.Close()
		})
	}
	c := client.New(filepath.Join(dir, control.ControlSocket))
	t.Cleanup(func() { c.Close() })
	eventually(t, "the daemon answers", func() bool { _, err := c.Version(context.Background()); return err == nil })
	eventually(t, "the node plugin is connected with containerd", func() bool {
		text, _ := os.ReadFile(path("log", "xsched-kube.log"))
		return strings.Contains(string(text), "connected with the container runtime")
	})
	return c
}

// labelled returns a pod of busybox that asks for a class.
func labelled(namespace, name, class string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {xsched.dev/priority-class: %q}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, imagePullPolicy: Never, command: [sh, -c, "trap exit TERM; while :; do sleep 1; done"], env: [{name: LD_PRELOAD, value: /own.so}]}
`, name, namespace, class, busyboxImage)
}

// grants lists the node plugin's grants as pod:class:priority.
func grants(t *testing.T, c *client.Client) []string {
	t.Helper()
	reply, err := c.Grants(context.Background())
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, g := range reply.Grants {
		if g.Source == "nri" {
			text := g.Pod + ":" + g.Class
			if g.Priority != nil {
				text += fmt.Sprintf(":%d", *g.Priority)
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}

func TestLabels(t *testing.T) {
	c := Start(t)
	d := startXSched(t)
	have := func(what string, want ...string) {
		t.Helper()
		var got []string
		eventually(t, what, func() bool { got = grants(t, d); return slices.Equal(got, want) })
	}
	edits := func(namespace, pod string) string {
		return strings.TrimSpace(c.Exec(t, namespace, pod, "sh", "-c", "echo $LD_PRELOAD; ls /run/xsched 2>/dev/null | sort | xargs"))
	}
	c.Namespace(t, "serving", "xsched.dev/allow-latency", "true")
	c.Apply(t, labelled("default", "plain", ""))
	c.Apply(t, labelled("default", "batch", "batch"))
	c.Apply(t, labelled("default", "greedy", "latency"))
	c.Apply(t, labelled("serving", "fast", "latency"))
	for _, p := range [][2]string{{"default", "plain"}, {"default", "batch"}, {"default", "greedy"}, {"serving", "fast"}} {
		c.WaitPod(t, p[0], p[1], "is ready", Running)
	}
	const shim = "/usr/lib/xsched/libxsched.so"
	for _, p := range []string{"plain", "greedy"} {
		if got := edits("default", p); got != "/own.so" {
			t.Errorf("pod %s was edited: %q", p, got)
		}
	}
	if got := edits("default", "batch"); !strings.HasPrefix(got, "/own.so:"+shim) || !strings.HasSuffix(got, "control.sock xsched.sock") {
		t.Errorf("pod batch: %q", got)
	}
	if got := edits("serving", "fast"); !strings.HasPrefix(got, "/own.so:"+shim) {
		t.Errorf("pod fast: %q", got)
	}
	have("grants of the pods that may have them", "batch:batch:-10", "fast:latency:10")
	eventually(t, "the pod is told why it got no class", func() bool {
		return strings.Contains(c.Kubectl(t, "get", "events", "-n", "default", "--field-selector", "involvedObject.name=greedy,reason=PriorityClassRefused", "-o", "jsonpath={.items[*].message}"),
			"namespace default may not use the class latency; use another class, or ask the administrator to label the namespace with xsched.dev/allow-latency=true")
	})

	// What a pod has follows its label while it runs.
	c.Kubectl(t, "label", "--overwrite", "-n", "serving", "pod", "fast", "xsched.dev/priority-class=batch")
	have("the class of a changed label", "batch:batch:-10", "fast:batch:-10")

	// The grants outlive a restart of containerd, and new pods get theirs after it.
	c.RestartContainerd(t)
	c.Apply(t, labelled("default", "later", "batch"))
	c.WaitPod(t, "default", "later", "is ready", Running)
	have("grants after a restart of containerd", "batch:batch:-10", "fast:batch:-10", "later:batch:-10")
	c.Kubectl(t, "delete", "pod", "batch", "--grace-period=1")
	have("no grant of a deleted pod", "fast:batch:-10", "later:batch:-10")

	// An annotation counts as a label does. A PriorityClass gives a class to containers with devices only,
	// in any namespace.
	c.Apply(t, strings.Replace(labelled("default", "noted", "batch"), "labels:", "annotations:", 1))
	addResource(t, c, "example.com/gpu")
	c.Apply(t, "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: serving-critical}, value: 1000}")
	critical := func(name string) string {
		return strings.Replace(labelled("default", name, ""), "spec:", "spec:\n  priorityClassName: serving-critical", 1)
	}
	c.Apply(t, strings.Replace(critical("critical"), "name: main,", `name: main, resources: {limits: {example.com/gpu: "1"}},`, 1))
	c.Apply(t, critical("without"))
	for _, name := range []string{"noted", "critical", "without"} {
		c.WaitPod(t, "default", name, "is ready", Running)
	}
	for name, want := range map[string]string{"noted": "/own.so:" + shim, "critical": "/own.so:" + shim, "without": "/own.so"} {
		if got := edits("default", name); !strings.HasPrefix(got, want) || strings.Contains(got, shim) != strings.Contains(want, shim) {
			t.Errorf("pod %s: %q; want %q", name, got, want)
		}
	}
	have("grants by annotation and PriorityClass", "critical:latency:10", "fast:batch:-10", "later:batch:-10", "noted:batch:-10")
}

// addResource gives the node two of an extended resource, as a device plugin does.
func addResource(t *testing.T, c *Cluster, name string) {
	t.Helper()
	patch := func(op string) error {
		_, err := c.TryKubectl("", "patch", "node", NodeName, "--subresource=status", "--type=json", "-p", fmt.Sprintf(
			`[{"op":%[1]q,"path":"/status/capacity/%[2]s","value":"2"},{"op":%[1]q,"path":"/status/allocatable/%[2]s","value":"2"}]`,
			op, strings.ReplaceAll(name, "/", "~1")))
		return err
	}
	if err := patch("add"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = patch("remove") }) // a kubelet that restarts takes it away, too
}
