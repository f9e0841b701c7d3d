// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
)

// tenantScript runs a program for the virtual GPU, which reads its commands from a pipe.
func tenantScript(name, args string) string {
	return fmt.Sprintf("mkfifo /tmp/in; exec 3<>/tmp/in; exec tenant --name %s %s <&3", name, args)
}

// tenantPod is a pod with a program for the virtual GPU. more is what its container has in addition,
// volumes what its pod has.
func tenantPod(name, args, more, volumes string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: tenant
    image: %[2]q
    imagePullPolicy: Never
    command: [sh, -c, %[3]q]
%[4]s
    volumeMounts:
    - {name: vgpu, mountPath: /virtual/vgpu.sock}
%[5]s
`, name, tenantImage, tenantScript(name, args), indent(more, "    "), indent(volumes, ""))
}

// withShim is what a pod needs that gets the shim and the daemon's folder by hand.
func withShim(t testing.TB) (more, volumes string) {
	return `env:
- {name: LD_PRELOAD, value: /xsched/libxsched.so}`, fmt.Sprintf(`    - {name: shim, mountPath: /xsched/libxsched.so, readOnly: true}
    - {name: client, mountPath: /run/xsched, readOnly: true}
  volumes:
  - {name: vgpu, hostPath: {path: %[1]s/vgpu.sock, type: Socket}}
  - {name: client, hostPath: {path: %[1]s/client, type: Directory}}
  - {name: shim, hostPath: {path: %[2]s, type: File}}`, daemonDir, product(t, "build/libxsched.so"))
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(text, "\n", "\n"+by)
}

// tenant is a running program in a pod.
type tenant struct {
	t   testing.TB
	c   *Cluster
	pod string
}

// tell sends a command to the program.
func (n tenant) tell(command string) {
	n.t.Helper()
	n.c.Exec(n.t, "default", n.pod, "sh", "-c", "echo "+command+" >/tmp/in")
}

// requests returns the durations of the requests that the program has finished.
func (n tenant) requests() (took []time.Duration) {
	n.t.Helper()
	n.each(func(begin, end int64) { took = append(took, time.Duration(end-begin)) })
	return took
}

// ends returns when its requests ended.
func (n tenant) ends() (at []time.Time) {
	n.t.Helper()
	n.each(func(_, end int64) { at = append(at, time.Unix(0, end)) })
	return at
}

// each reads the requests that the program has finished.
func (n tenant) each(request func(begin, end int64)) {
	n.t.Helper()
	for line := range strings.Lines(n.c.Logs(n.t, "default", n.pod, "tenant")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "I" {
			begin, _ := strconv.ParseInt(f[1], 10, 64)
			end, _ := strconv.ParseInt(f[2], 10, 64)
			request(begin, end)
		}
	}
}

// finish ends the program. Its exit code tells whether all of its results were right.
func (n tenant) finish() {
	n.t.Helper()
	for _, command := range []string{"pause", "report", "quit"} {
		n.tell(command)
	}
	n.c.WaitPod(n.t, "default", n.pod, "has succeeded", Succeeded)
	log := n.c.Logs(n.t, "default", n.pod, "tenant")
	at := strings.LastIndex(log, "\nS ")
	if f := strings.Fields(log[at+1:]); at < 0 || len(f) < 4 || f[1] == "0" || f[2] != f[3] {
		n.t.Errorf("wrong result: checksum of %s: %v", n.pod, f)
	}
}

func percentile(all []time.Duration, percent int) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)-1, len(all)*percent/100)]
}

// TestGrantedPodsShareGPU runs a latency and a batch pod on one GPU, with grants that name them. The
// daemon finds each pod's programs by the cgroup that the kernel reports.
func TestGrantedPodsShareGPU(t *testing.T) {
	c := Start(t)
	h := startHost(t)
	more, volumes := withShim(t)
	priorities := map[string]int32{"latency": 10, "batch": -10}
	var grants []control.Grant
	for name, args := range map[string]string{"latency": "--kernel-us 500", "batch": "--kernel-us 20000"} {
		c.Apply(t, tenantPod(name, args, more, volumes))
		pod := c.WaitPod(t, "default", name, "is ready", Running)
		priority := priorities[name]
		grants = append(grants, control.Grant{
			ID: name, Namespace: "default", Pod: name, PodUID: string(pod.UID), Class: "gpu-" + name, Priority: &priority,
		})
	}
	if _, err := h.client.SetGrants(context.Background(), control.GrantsRequest{Source: "test", Grants: grants}); err != nil {
		t.Fatal(err)
	}
	compete(t, c, h, priorities)
}

// claimClass is a device class of the administrator, and a claim of it.
const claimClass = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu-%[1]s}
spec:
  selectors: [{cel: {expression: device.driver == "gpu.xsched.dev"}}]
  config:
  - opaque:
      driver: gpu.xsched.dev
      parameters: {apiVersion: gpu.xsched.dev/v1alpha1, kind: GpuParameters, priority: %[2]d}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %[1]s}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu-%[1]s}}]}}
`

// TestLaterPodOfClaim: the kubelet prepares a claim for its first pod only. Without NRI the plugin learns of
// the second one from the claim itself.
func TestLaterPodOfClaim(t *testing.T) {
	c := Start(t)
	h := startHost(t)
	h.start("node", "xsched-kube", "node", "--node-name", NodeName, "--kubeconfig", userConfig("admin"), "--dir", daemonDir, "--nri-socket=", "--every=1s")
	c.Apply(t, fmt.Sprintf(claimClass, "shared", 7))
	for _, name := range []string{"first", "second"} { // the second starts when the claim is prepared
		c.Apply(t, tenantPod(name, "--kernel-us 500", "resources: {claims: [{name: gpu}]}", fmt.Sprintf(`  resourceClaims: [{name: gpu, resourceClaimName: shared}]
  volumes:
  - {name: vgpu, hostPath: {path: %s/vgpu.sock, type: Socket}}`, daemonDir)))
		c.WaitPod(t, "default", name, "is ready", Running)
		eventually(t, "the daemon has pod "+name+" with the claim's priority", func() bool {
			p := h.process("default", name)
			return p != nil && p.Priority == 7 && p.Class == "gpu-shared"
		})
	}
}

// compete lets the batch pod fill the GPU while the latency pod has requests.
func compete(t *testing.T, c *Cluster, h *host, priorities map[string]int32) {
	t.Helper()
	latency, batch := tenant{t, c, "latency"}, tenant{t, c, "batch"}
	for name, want := range priorities {
		eventually(t, fmt.Sprintf("the daemon has pod %s with priority %d", name, want), func() bool {
			p := h.process("default", name)
			return p != nil && p.Priority == want && p.Class == "gpu-"+name
		})
	}
	batch.tell("loop")
	eventually(t, "the batch pod runs", func() bool { return len(batch.requests()) > 5 })
	latency.tell("rate 20")
	eventually(t, "the latency pod has 60 answers", func() bool { return len(latency.requests()) >= 60 })
	during := latency.requests()
	// The daemon has the hardware preempt: the timeslice of the latency pod is the longer one.
	first, second := h.onGPU("latency"), h.onGPU("batch")
	if second.Preemptions == 0 || first.SliceNS <= second.SliceNS {
		t.Errorf("the device's record: latency %+v, batch %+v", first, second)
	}
	text, err := exec.Command(product(t, "bin/xsched"), "list", "--dir", daemonDir).CombinedOutput()
	if err != nil {
		t.Errorf("xsched list: %v", err)
	}
	t.Logf("xsched list:\n%s", text)
	for name := range priorities {
		if !strings.Contains(string(text), "default/"+name) {
			t.Errorf("xsched list does not show the pod %s", name)
		}
	}
	t.Logf("latency pod beside batch kernels of 20 ms: P50 %v, P99 %v of %d requests of 500 µs",
		percentile(during, 50), percentile(during, 99), len(during))
	latency.finish()
	batch.finish()
}
