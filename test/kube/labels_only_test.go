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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/control/client"
)

// chartAccount makes the service account of the chart with its rights, and returns a configuration with its token.
func chartAccount(t *testing.T, c *Cluster, settings ...string) string {
	t.Helper()
	_, _ = c.TryKubectl("", "create", "namespace", chartSpace) // may be there, from another test
	c.Apply(t, helmMust(t, append([]string{"template", "xsched", chart, "-s", "templates/rbac.yaml"}, settings...)...))
	token := strings.TrimSpace(c.Kubectl(t, "-n", chartSpace, "create", "token", "xsched"))
	text, err := os.ReadFile(userConfig("admin"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), userToken(t, "admin"), token, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestLabelsOnly runs the plugin without claims, with the rights that the chart then gives it, next to a device plugin:
// pods get their class by label. Neither the kubelet nor the API server learns of a driver.
func TestLabelsOnly(t *testing.T) {
	c := Start(t)
	if err := loadBinding(); err != nil {
		t.Fatal(err)
	}
	config := chartAccount(t, c, "--set", "dra.enabled=false")
	h := &host{t: t, client: client.New(filepath.Join(daemonDir, "control.sock"))}
	if err := os.MkdirAll(daemonDir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(daemonDir) })
	h.start("serve", "xsched", "serve", "--virtual", "--dir", daemonDir, "--no-state")
	h.answers()
	h.start("plugin", "xsched-kube", "node", "--labels-only", "--node-name", NodeName, "--dir", daemonDir, "--kubeconfig", config, "--nri-socket", NRISocket, "--every", "2s")
	log := func() string { text, _ := os.ReadFile(path("log", "plugin.log")); return string(text) }
	eventually(t, "the plugin is connected with containerd", func() bool { return strings.Contains(log(), "connected with the container runtime") })
	eventually(t, "the plugin is ready", func() bool {
		return exec.Command(product(t, "bin/xsched-kube"), "health", "--ready", "--kubelet-dir", kubeletDir).Run() == nil
	})

	c.Namespace(t, "serving", "xsched.dev/allow-latency", "true")
	addResource(t, c, "example.com/gpu")
	program := func(name, more string) string {
		script := strings.Replace(tenantScript(name, "--kernel-us 500"), "exec tenant", "echo loop >&3; exec tenant", 1)
		pod := strings.Replace(claimPod(name, bindingImage, script, "resourceClaimName: none"), "{name: "+name+"}", "{name: "+name+", "+more+"}", 1)
		pod, _, _ = strings.Cut(pod, "    resources:")
		return pod + "    resources: {limits: {example.com/gpu: 1}}\n"
	}
	c.Apply(t, program("fast", "namespace: serving, labels: {xsched.dev/priority-class: latency}"))
	c.Apply(t, program("slow", "annotations: {xsched.dev/priority-class: batch}"))
	for _, p := range []struct {
		space, name string
		priority    int32
	}{{"serving", "fast", 10}, {"default", "slow", -10}} {
		c.WaitPod(t, p.space, p.name, "is ready", Running)
		eventually(t, fmt.Sprintf("%s works with priority %d", p.name, p.priority), func() bool {
			process := h.process(p.space, p.name)
			return process != nil && process.Priority == p.priority
		})
	}
	if got := grants(t, h.client); !slices.Equal(got, []string{"fast:latency:10", "slow:batch:-10"}) {
		t.Errorf("grants: %v", got)
	}
	published, err := c.Client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(published.Items) > 0 {
		t.Errorf("%d ResourceSlices, %v", len(published.Items), err)
	}
	if sockets, _ := filepath.Glob(filepath.Join(kubeletDir, "plugins_registry", "*xsched*")); len(sockets) > 0 {
		t.Errorf("the kubelet has %v", sockets)
	}
	if strings.Contains(log(), "forbidden") {
		t.Errorf("the plugin asked for more than the chart permits:\n%s", log())
	}
}

// TestExtendedResource: a limit of resources is enough for a GPU of a class, without a claim of one's own.
func TestExtendedResource(t *testing.T) {
	c := Start(t)
	h := startFour(t, c)
	c.Apply(t, helmMust(t, "template", "xsched", chart, "-s", "templates/deviceclasses.yaml", "--set", "deviceClasses.gpu-latency.extendedResourceName=xsched.dev/latency"))
	pod := func(name string, gpus int) string {
		script := strings.Replace(tenantScript(name, "--kernel-us 500"), "exec tenant", "echo loop >&3; exec tenant", 1)
		text := claimPod(name, bindingImage, script, "resourceClaimName: none")
		text, _, _ = strings.Cut(text, "    resources:")
		return text + fmt.Sprintf("    resources: {limits: {xsched.dev/latency: %d}}\n", gpus)
	}
	used := map[string]int{}
	for i, gpus := range []int{1, 1, 2} {
		name := fmt.Sprintf("limit-%d", i)
		c.Apply(t, pod(name, gpus))
		running := c.WaitPod(t, "default", name, "is ready", Running)
		if running.Status.ExtendedResourceClaimStatus == nil {
			t.Fatalf("pod %s has no claim: %+v", name, running.Status)
		}
		claim, err := c.Client.ResourceV1().ResourceClaims("default").Get(context.Background(), running.Status.ExtendedResourceClaimStatus.ResourceClaimName, metav1.GetOptions{})
		if err != nil || claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) != gpus {
			t.Fatalf("claim of pod %s: %+v, %v", name, claim, err)
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			used[r.Device]++
		}
		eventually(t, "program "+name+" has the priority of the class", func() bool {
			p := h.process("default", name)
			return p != nil && p.Priority == 10
		})
	}
	if len(used) != gpusOfNode {
		t.Errorf("four requests have the GPUs %v", used)
	}
}
