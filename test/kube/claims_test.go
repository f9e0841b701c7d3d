// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/kube/node"
)

// allocated returns the allocations of all claims.
func (s site) allocated() (all []resourceapi.DeviceRequestAllocationResult) {
	s.t.Helper()
	claims, err := s.c.Client.ResourceV1().ResourceClaims("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range claims.Items {
		if a := claims.Items[i].Status.Allocation; a != nil {
			all = append(all, a.Devices.Results...)
		}
	}
	return all
}

// reserved returns the sum of the shares of all claims, which never is above 100. That of their memory never
// is above what the chart says.
func (s site) reserved() (sum int64) {
	s.t.Helper()
	memory := int64(0)
	for _, a := range s.allocated() {
		share, bytes := a.ConsumedCapacity["share"], a.ConsumedCapacity["memory"]
		sum, memory = sum+share.Value(), memory+bytes.Value()
	}
	if memory > 80<<30 {
		s.t.Errorf("claims have %d GiB of the GPU", memory>>30)
	}
	if sum > 100 {
		s.t.Errorf("claims have %d %% of the GPU", sum)
	}
	return sum
}

// empty waits until nothing is left of any claim on the node.
func (s site) empty() {
	s.t.Helper()
	eventually(s.t, "no specification and no grant is left", func() bool {
		grants := s.grants()
		return len(s.specs()) == 0 && grants != nil && len(grants) == 0
	})
}

func unschedulable(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			return condition.Status == corev1.ConditionFalse && condition.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// testShares claims more than the whole first GPU, and more than its memory.
func testShares(t *testing.T, s site) {
	ask := func(name, capacity string) {
		s.c.Apply(t, claim(name, "batch", firstGPU+", capacity: {requests: {"+capacity+"}}")+"---"+holderPod(name))
	}
	add := func(name string, share int) { ask(name, fmt.Sprintf(`share: "%d"`, share)) }
	running := func(name string) {
		t.Helper()
		s.c.WaitPod(t, "default", name, "is ready", func(pod *corev1.Pod) bool { s.reserved(); return Running(pod) })
	}
	add("share-60", 60)
	add("share-30", 30)
	running("share-60")
	running("share-30")
	add("share-40", 40)
	s.c.WaitPod(t, "default", "share-40", "waits for capacity", unschedulable)
	add("share-10", 10) // fits, and the scheduler has looked at all again
	running("share-10")
	if n := s.reserved(); n != 100 {
		t.Errorf("claims have %d %% of the GPU, not 100", n)
	}
	if pod := s.c.WaitPod(t, "default", "share-40", "waits for capacity", unschedulable); pod.Spec.NodeName != "" {
		t.Errorf("pod share-40 is on %s", pod.Spec.NodeName)
	}
	if g, ok := s.grants()["share-60"]; !ok || g.Utilization == nil || *g.Utilization != 60 {
		t.Errorf("the daemon has the grant %+v", g)
	}
	s.c.Kubectl(t, "delete", "pod/share-60", "resourceclaim/share-60")
	running("share-40")
	if n := s.reserved(); n != 80 {
		t.Errorf("claims have %d %% of the GPU, not 80", n)
	}
	ask("memory-50", "memory: 50Gi")
	running("memory-50")
	ask("memory-40", "memory: 40Gi")
	s.c.WaitPod(t, "default", "memory-40", "waits for memory", unschedulable)
	s.c.Kubectl(t, "delete", "pod/memory-50", "resourceclaim/memory-50")
	running("memory-40")
}

// testBadParameters makes claims with parameters that the plugin must refuse.
func testBadParameters(t *testing.T, s site) {
	bad := func(name, parameters string) string {
		config := `}}], config: [{opaque: {driver: gpu.xsched.dev, parameters: {apiVersion: gpu.xsched.dev/v1alpha1, kind: GpuParameters, %s}}}]}}`
		return strings.Replace(claim(name, "batch", ""), "}}]}}", fmt.Sprintf(config, parameters), 1) + "---" + holderPod(name)
	}
	cases := map[string][2]string{
		"raised":  {"priority: 200", "priority 200 of the claim is above the -10 of its device class; lower it, or ask for another device class"},
		"unknown": {"priorty: -20", "priorty"},
	}
	for name, c := range cases {
		s.c.Apply(t, bad(name, c[0]))
	}
	for name, c := range cases {
		for _, kind := range []string{"ResourceClaim", "Pod"} {
			eventually(t, "an event on the "+kind+" "+name, func() bool {
				return strings.Contains(s.c.Kubectl(t, "get", "events", "--field-selector", "involvedObject.kind="+kind+",involvedObject.name="+name+",reason=BadGpuParameters",
					"-o", "jsonpath={.items[*].message}"), c[1])
			})
		}
		if pod := s.c.WaitPod(t, "default", name, "exists", func(*corev1.Pod) bool { return true }); pod.Status.Phase != corev1.PodPending {
			t.Errorf("pod %s is %s", name, pod.Status.Phase)
		}
		s.c.Kubectl(t, "delete", "pod/"+name, "resourceclaim/"+name)
	}
	s.empty()
	s.c.Apply(t, bad("raised", "priority: -20"))
	s.c.WaitPod(t, "default", "raised", "is ready", Running)
	if g := s.grants()["raised"]; g.Priority == nil || *g.Priority != -20 {
		t.Errorf("the daemon has the grant %+v", g)
	}
}

// testPluginKilled stops the plugin before the kubelet calls it, and kills it in the call: once when it
// shall prepare a claim, once when it shall give it back.
func testPluginKilled(t *testing.T, s site) {
	stopped := func() int {
		t.Helper()
		var pid int
		eventually(t, "the plugin runs", func() bool { pid = findProcess("xsched-kube", "node"); return pid != 0 })
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	pid := stopped()
	s.c.Apply(t, claim("held", "batch", "")+"---"+holderPod("held"))
	s.c.WaitPod(t, "default", "held", "is on the node", func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
	s.killPlugin(pid)
	pod := s.c.WaitPod(t, "default", "held", "is ready", Running)
	if len(s.specs()) != 1 || len(s.grants()) != 1 {
		t.Errorf("specifications %v, grants %v", s.specs(), s.grants())
	}
	pid = stopped()
	s.c.Kubectl(t, "delete", "pod", "held", "--wait=false")
	eventually(t, "the pod's containers have ended", func() bool {
		text, err := output(context.Background(), "", "ctr", "-a", containerdSocket, "-n", "k8s.io", "tasks", "list")
		_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
		return err == nil && !containsRunning(text, id)
	})
	if len(s.specs()) != 1 {
		t.Errorf("a stopped plugin gave the claim back: %v", s.specs())
	}
	s.killPlugin(pid)
	eventually(t, "the pod is gone", func() bool {
		_, err := s.c.Client.CoreV1().Pods("default").Get(context.Background(), "held", metav1.GetOptions{})
		return err != nil
	})
	s.empty()
	eventually(t, "the claim is free", func() bool { return len(s.allocated()) == 0 })
}

// testDaemonHangs stops the daemon without ending it. New claims then wait until it answers again.
func testDaemonHangs(t *testing.T, s site) {
	pid := findProcess("xsched", "serve")
	if pid == 0 {
		t.Fatal("no daemon runs")
	}
	restarts := s.restarts("node")
	resume := func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // the kubelet may have replaced it
	t.Cleanup(resume)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the GPUs have the taint", func() bool {
		all := s.devices()
		return len(all) == s.gpus && !slices.ContainsFunc(all, func(d resourceapi.Device) bool {
			return !slices.ContainsFunc(d.Taints, func(taint resourceapi.DeviceTaint) bool {
				return taint.Key == node.TaintDaemonDown && taint.Effect == resourceapi.DeviceTaintEffectNoSchedule
			})
		})
	})
	eventually(t, "the node plugin is alive and not ready: claims can't be prepared", func() bool {
		pod, _ := s.daemonPod()
		for _, status := range s.c.WaitPod(t, chartSpace, pod, "exists", func(*corev1.Pod) bool { return true }).Status.ContainerStatuses {
			if status.Name == "node" {
				return !status.Ready && status.State.Running != nil && status.RestartCount == restarts
			}
		}
		return false
	})
	eventually(t, "an event on the node", func() bool {
		return strings.Contains(s.c.Kubectl(t, "get", "events", "--field-selector", "involvedObject.kind=Node,involvedObject.name="+NodeName+",reason=GpuTainted",
			"-o", "jsonpath={.items[*].message}"), node.TaintDaemonDown)
	})
	s.c.Apply(t, claim("patient", "batch", "")+"---"+holderPod("patient"))
	if pod := s.c.WaitPod(t, "default", "patient", "waits for a GPU without the taint", unschedulable); pod.Spec.NodeName != "" {
		t.Errorf("the pod is on %s", pod.Spec.NodeName)
	}
	resume()
	s.c.WaitPod(t, "default", "patient", "is ready", Running)
	s.ready()
}

// restarts returns how often a container of the DaemonSet's pod was restarted.
func (s site) restarts(container string) int32 {
	s.t.Helper()
	pod, _ := s.daemonPod()
	for _, status := range s.c.WaitPod(s.t, chartSpace, pod, "exists", func(*corev1.Pod) bool { return true }).Status.ContainerStatuses {
		if status.Name == container {
			return status.RestartCount
		}
	}
	s.t.Fatalf("pod %s has no container %s", pod, container)
	return 0
}

// containsRunning reports whether a listing of tasks has a running one with this id.
func containsRunning(tasks, id string) bool {
	for line := range strings.Lines(tasks) {
		if strings.HasPrefix(line, id) && strings.Contains(line, "RUNNING") {
			return true
		}
	}
	return false
}

// killPlugin kills a process of the plugin and waits until another one serves.
func (s site) killPlugin(pid int) {
	s.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "another plugin runs", func() bool { now := findProcess("xsched-kube", "node"); return now != 0 && now != pid })
}

// testParallelClaims makes claims at once for pods with far more claims than the node has GPUs. The kubelet prepares
// the claims of a pod together.
func testParallelClaims(t *testing.T, s site) {
	const pods, claims = 10, 20
	var all strings.Builder
	all.WriteString(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: many}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu-batch}}]}}}
`)
	refs := make([]string, claims)
	for i := range refs {
		refs[i] = "resourceClaimTemplateName: many"
	}
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprintf("many-%d", i))
		all.WriteString("---" + claimPod(names[i], busyboxImage, untilEnd, refs...))
	}
	s.c.Apply(t, all.String())
	for _, name := range names {
		s.c.WaitPod(t, "default", name, "is ready", Running)
	}
	if a, specs, grants := len(s.allocated()), len(s.specs()), len(s.grants()); a != pods*claims || specs != pods*claims || grants != pods {
		t.Errorf("%d claims, %d specifications, grants of %d pods; want %d, %d, %d", a, specs, grants, pods*claims, pods*claims, pods)
	}
	counts := map[string]int{}
	for _, a := range s.allocated() {
		counts[a.Device]++
	}
	for device, n := range counts {
		if len(counts) != s.gpus || n != pods*claims/s.gpus {
			t.Errorf("%s has %d of the claims: %v", device, n, counts)
		}
	}
	s.c.Kubectl(t, append([]string{"delete", "pods", "--wait=false"}, names...)...)
	s.empty()
	eventually(t, "no claim is left", func() bool { return len(s.allocated()) == 0 })
}
