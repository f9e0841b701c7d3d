// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"xsched/internal/kube/cluster"
	"xsched/internal/kube/node"
)

// size is what a claim asks for.
type size struct {
	class  string
	share  int64 // in percent of a GPU; 0: best effort
	memory int64 // in GiB
}

// sizes are the mix of claims, in turn: half of them latency with a share, half batch with best effort.
var sizes = []size{
	{"gpu-latency", 30, 10},
	{"gpu-batch", 0, 8},
	{"gpu-latency", 50, 40},
	{"gpu-batch", 0, 24},
	{"gpu-latency", 30, 16},
	{"gpu-batch", 0, 16},
	{"gpu-latency", 10, 4},
	{"gpu-batch", 0, 4},
	{"gpu-latency", 30, 24},
	{"gpu-batch", 0, 40},
}

// classPriority is what the chart's device classes give their claims.
var classPriority = map[string]int{"gpu-latency": 10, "gpu-batch": -10}

const scaleSpace = "scale"

func claimName(i int) string { return fmt.Sprintf("claim-%05d", i) }

// addClaim makes a claim and a pod that uses it, after changes to the pod.
func addClaim(ctx context.Context, client kubernetes.Interface, i int, s size, changes ...func(*corev1.Pod)) error {
	name := claimName(i)
	requests := map[resourceapi.QualifiedName]resource.Quantity{node.Memory: *resource.NewQuantity(s.memory<<30, resource.BinarySI)}
	if s.share > 0 {
		requests[node.Share] = *resource.NewQuantity(s.share, resource.DecimalSI)
	}
	_, err := client.ResourceV1().ResourceClaims(scaleSpace).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: s.class, Capacity: &resourceapi.CapacityRequirements{Requests: requests},
			},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	no := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no,
			Tolerations:                  []corev1.Toleration{{Key: simulatedLabel, Operator: corev1.TolerationOpExists}},
			ResourceClaims:               []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
			Containers: []corev1.Container{{
				Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	_, err = client.CoreV1().Pods(scaleSpace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// allocations are all claims and GPUs as the API server has them.
type allocations struct {
	claims map[string]*resourceapi.ResourceClaim
	pods   map[string]*corev1.Pod
	gpus   map[gpu]resourceapi.Device
	nodes  map[string]string // of a pool
}

type gpu struct{ pool, device string }

func readAllocations(t testing.TB, client kubernetes.Interface) *allocations {
	t.Helper()
	ctx := context.Background()
	a := &allocations{map[string]*resourceapi.ResourceClaim{}, map[string]*corev1.Pod{}, map[gpu]resourceapi.Device{}, map[string]string{}}
	for next := ""; ; {
		page, err := client.ResourceV1().ResourceClaims(scaleSpace).List(ctx, metav1.ListOptions{Limit: 500, Continue: next})
		if err != nil {
			t.Fatal(err)
		}
		for i := range page.Items {
			a.claims[page.Items[i].Name] = &page.Items[i]
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	for next := ""; ; {
		page, err := client.CoreV1().Pods(scaleSpace).List(ctx, metav1.ListOptions{Limit: 500, Continue: next})
		if err != nil {
			t.Fatal(err)
		}
		for i := range page.Items {
			a.pods[page.Items[i].Name] = &page.Items[i]
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	slices, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + cluster.Driver})
	if err != nil {
		t.Fatal(err)
	}
	for i := range slices.Items {
		s := &slices.Items[i].Spec
		if s.NodeName == nil {
			t.Fatalf("slice %s has no node", slices.Items[i].Name)
		}
		a.nodes[s.Pool.Name] = *s.NodeName
		for _, d := range s.Devices {
			a.gpus[gpu{s.Pool.Name, d.Name}] = d
		}
	}
	return a
}

// check verifies every allocation, and that no GPU is oversold. It returns how many claims have a GPU, and
// how many GPUs have a claim.
func (a *allocations) check(t testing.TB, want func(i int) size, count int) (allocated, used int) {
	t.Helper()
	sold := map[gpu]map[resourceapi.QualifiedName]*resource.Quantity{}
	shares := map[string]bool{}
	for i := range count {
		name, s := claimName(i), want(i)
		claim, pod := a.claims[name], a.pods[name]
		if claim == nil || pod == nil {
			continue // there was no time to make it
		}
		if claim.Status.Allocation == nil {
			if pod.Spec.NodeName != "" {
				t.Errorf("%s: its pod is on %s, but it has no GPU", name, pod.Spec.NodeName)
			}
			continue
		}
		allocated++
		results := claim.Status.Allocation.Devices.Results
		if len(results) != 1 {
			t.Errorf("%s: %d devices", name, len(results))
			continue
		}
		r := &results[0]
		g := gpu{r.Pool, r.Device}
		if _, ok := a.gpus[g]; !ok || r.Driver != cluster.Driver || r.Request != "gpu" {
			t.Errorf("%s: no such GPU: %+v", name, r)
		}
		if pod.Spec.NodeName != a.nodes[r.Pool] && pod.Spec.NodeName != "" {
			t.Errorf("%s: its pod is on %q, its GPU on %q", name, pod.Spec.NodeName, a.nodes[r.Pool])
		}
		if len(claim.Status.ReservedFor) != 1 || claim.Status.ReservedFor[0].UID != pod.UID {
			t.Errorf("%s is reserved for %v", name, claim.Status.ReservedFor)
		}
		if r.ShareID == nil || shares[string(*r.ShareID)] {
			t.Errorf("%s: the share of the GPU has no name of its own", name)
		} else {
			shares[string(*r.ShareID)] = true
		}
		share, memory := r.ConsumedCapacity[node.Share], r.ConsumedCapacity[node.Memory]
		if share.Value() != s.share || memory.Value() != s.memory<<30 {
			t.Errorf("%s: got share %v and memory %v, asked for %d and %d GiB", name, &share, &memory, s.share, s.memory)
		}
		if p, err := allocatedPriority(claim); err != nil || p != classPriority[s.class] {
			t.Errorf("%s: class %s has priority %d, %v", name, s.class, p, err)
		}
		if sold[g] == nil {
			sold[g] = map[resourceapi.QualifiedName]*resource.Quantity{}
		}
		for capacity, amount := range r.ConsumedCapacity {
			if sold[g][capacity] == nil {
				sold[g][capacity] = &resource.Quantity{}
			}
			sold[g][capacity].Add(amount)
		}
	}
	for g, capacities := range sold {
		for capacity, amount := range capacities {
			if have := a.gpus[g].Capacity[capacity].Value; amount.Cmp(have) > 0 {
				t.Errorf("GPU %s of %s: %v of %v %s sold", g.device, g.pool, amount, &have, capacity)
			}
		}
	}
	return allocated, len(sold)
}

// allocatedPriority reads the class's parameters from an allocation.
func allocatedPriority(claim *resourceapi.ResourceClaim) (int, error) {
	configs := claim.Status.Allocation.Devices.Config
	if len(configs) != 1 || configs[0].Source != resourceapi.AllocationConfigSourceClass || configs[0].Opaque == nil || configs[0].Opaque.Driver != cluster.Driver {
		return 0, fmt.Errorf("the allocation has other parameters than those of the class: %+v", configs)
	}
	var p struct {
		Kind     string `json:"kind"`
		Priority int    `json:"priority"`
	}
	err := json.Unmarshal(configs[0].Opaque.Parameters.Raw, &p)
	if err == nil && p.Kind != "GpuParameters" {
		err = fmt.Errorf("kind %q", p.Kind)
	}
	return p.Priority, err
}
