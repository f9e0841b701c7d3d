// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/control/client"
	"xsched/internal/kube/node"
	vdevice "xsched/internal/virtual/device"
)

const (
	gpusOfNode   = 4
	bindingImage = "localhost/binding:1"
)

// loadBinding brings an image with a program and without a driver to the node, once.
var loadBinding = sync.OnceValue(func() error {
	m := newImage(bindingImage, "tenant")
	m.copyProgram("bin/tenant", filepath.Join(root, "build", "virtual", "tenant"))
	return m.load()
})

// startFour starts a daemon with four virtual GPUs and the node plugin, as processes of the node.
func startFour(t *testing.T, c *Cluster) *host {
	t.Helper()
	if err := loadBinding(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(daemonDir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(daemonDir) })
	h := &host{t: t, client: client.New(filepath.Join(daemonDir, "control.sock"))}
	socket := filepath.Join(daemonDir, "vgpu.sock")
	h.start("vgpu", "xsched", "vgpu", "--socket", socket, "--devices", fmt.Sprint(gpusOfNode))
	eventually(t, "the virtual GPUs answer", func() bool {
		var err error
		h.gpu, err = vdevice.Dial(socket)
		return err == nil
	})
	t.Cleanup(func() { _ = h.gpu.Close() })
	h.start("serve", "xsched", "serve", "--virtual", "--dir", daemonDir, "--no-state")
	h.answers()
	h.start("plugin", "xsched-kube", "node", "--node-name", NodeName, "--dir", daemonDir, "--kubeconfig", userConfig("admin"), "--cdi-dir", CDIDir, "--nri-socket", NRISocket, "--every", "2s")
	classes, err := os.ReadFile(filepath.Join(root, "deploy", "kubernetes", "classes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(t, string(classes))
	s := site{h, c, gpusOfNode}
	eventually(t, "four GPUs are published", func() bool { return len(s.devices()) == gpusOfNode })
	return h
}

// bound returns the devices of a claim, and those that the program of its pod used by the record of the GPUs.
func bound(t *testing.T, c *Cluster, h *host, name string) (allocated, used []string) {
	t.Helper()
	claim, err := c.Client.ResourceV1().ResourceClaims("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil || claim.Status.Allocation == nil {
		t.Fatalf("claim %s: %+v, %v", name, claim, err)
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		allocated = append(allocated, r.Device)
	}
	spans, err := h.gpu.Timeline(0, 1<<62)
	if err != nil {
		t.Fatal(err)
	}
	p := h.process("default", name)
	for _, span := range spans {
		device := node.DeviceName(fmt.Sprintf("0000:%02x:00.0", span.Device+1))
		if p != nil && span.PID == p.PID && !slices.Contains(used, device) {
			used = append(used, device)
		}
	}
	slices.Sort(allocated)
	slices.Sort(used)
	return allocated, used
}

// TestBinding: the GPU of a claim is the GPU of its program, by the record of the GPUs themselves. Claims of 60 % take a
// GPU each. Claims that reserve nothing are spread within one of even.
func TestBinding(t *testing.T) {
	c := Start(t)
	h := startFour(t, c)
	work := func(name, capacity string) string {
		script := strings.Replace(tenantScript(name, "--kernel-us 500"), "exec tenant", "echo loop >&3; exec tenant", 1)
		return claim(name, "batch", capacity) + "---" + claimPod(name, bindingImage, script, "resourceClaimName: "+name)
	}
	run := func(t *testing.T, prefix, capacity string, claims int) map[string]int {
		t.Helper()
		names := make([]string, claims)
		for i := range names {
			names[i] = fmt.Sprintf("%s-%d", prefix, i)
			c.Apply(t, work(names[i], capacity))
		}
		counts := map[string]int{}
		for _, name := range names {
			c.WaitPod(t, "default", name, "is ready", Running)
			eventually(t, "program "+name+" uses a GPU", func() bool { _, used := bound(t, c, h, name); return len(used) > 0 })
			allocated, used := bound(t, c, h, name)
			if !slices.Equal(allocated, used) {
				t.Errorf("claim %s has %v, its program used %v", name, allocated, used)
			}
			counts[allocated[0]]++
		}
		for _, name := range names {
			c.Kubectl(t, "delete", "pod/"+name, "resourceclaim/"+name)
		}
		return counts
	}
	t.Run("Shares", func(t *testing.T) {
		if got := run(t, "sixty", `, capacity: {requests: {share: "60"}}`, gpusOfNode); len(got) != gpusOfNode {
			t.Errorf("claims per GPU: %v", got)
		}
	})
	t.Run("BestEffort", func(t *testing.T) {
		got := run(t, "spread", "", 6)
		for device, n := range got {
			if n > 2 || len(got) != gpusOfNode {
				t.Errorf("%s has %d of 6 claims: %v", device, n, got)
			}
		}
	})
	t.Run("Several", func(t *testing.T) {
		pair := strings.Replace(work("pair", ", count: 2"), "tenant --name", "tenant --device 1 --name", 1)
		c.Apply(t, pair)
		c.WaitPod(t, "default", "pair", "is ready", Running)
		eventually(t, "the program uses a GPU", func() bool { _, used := bound(t, c, h, "pair"); return len(used) > 0 })
		if allocated, used := bound(t, c, h, "pair"); len(allocated) != 2 || allocated[0] == allocated[1] || used[0] != allocated[1] {
			t.Errorf("claim has %v, the program used %v as its second", allocated, used)
		}
		c.Kubectl(t, "delete", "pod/pair", "resourceclaim/pair")
	})
	t.Run("Distinct", func(t *testing.T) { testDistinct(t, c, work) })
}

// testDistinct: while a pod with more claims than GPUs waits, every GPU has room for several claims. Two GPUs of one
// request are two nevertheless. Those of two requests are two if a constraint says so.
func testDistinct(t *testing.T, c *Cluster, work func(name, capacity string) string) {
	names := make([]string, gpusOfNode+2)
	for i := range names {
		names[i] = fmt.Sprintf("resourceClaimName: wait-%d", i)
		c.Apply(t, claim(fmt.Sprintf("wait-%d", i), "batch", ""))
	}
	c.Apply(t, strings.Replace(claimPod("waits", busyboxImage, untilEnd, names...), "spec:\n", "spec:\n  nodeSelector: {no: node}\n", 1))
	eventually(t, "every GPU has room for several claims", func() bool {
		return !slices.ContainsFunc((site{c: c}).devices(), func(d resourceapi.Device) bool {
			tenants := d.Capacity[node.Tenants].Value
			return tenants.Value() < 3
		})
	})
	two := func(name string) string {
		return strings.Replace(work(name, ""), "[{name: gpu,", "[{name: other, exactly: {deviceClassName: gpu-batch}}, {name: gpu,", 1)
	}
	for _, one := range []struct {
		name, text string
		distinct   bool
	}{
		{"count", work("count", ", count: 2"), true},
		{"requests", two("requests"), false},
		{"apart", strings.Replace(two("apart"), "{devices: {", "{devices: {constraints: [{distinctAttribute: resource.kubernetes.io/pciBusID}], ", 1), true},
	} {
		c.Apply(t, one.text)
		c.WaitPod(t, "default", one.name, "is ready", Running)
		claim, err := c.Client.ResourceV1().ResourceClaims("default").Get(context.Background(), one.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := claim.Status.Allocation.Devices.Results
		t.Logf("claim %s has %s and %s", one.name, got[0].Device, got[1].Device)
		if len(got) != 2 || (got[0].Device != got[1].Device) != one.distinct {
			t.Errorf("claim %s: %+v", one.name, got)
		}
	}
	c.Kubectl(t, "delete", "pod", "waits", "count", "requests", "apart")
	c.Kubectl(t, "delete", "resourceclaim", "--all")
}
