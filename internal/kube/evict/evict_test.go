// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"xsched/internal/kube/cluster"
)

// server is an API server with one node of two GPUs. It refuses the eviction of pods with a budget.
type server struct {
	t       *testing.T
	node    corev1.Node
	pods    map[string]*corev1.Pod
	claims  map[string]*resourceapi.ResourceClaim
	budget  map[string]bool
	evicted []string
	dry     int
	events  []string
}

func (s *server) Eventf(object runtime.Object, _, reason, format string, args ...any) {
	s.events = append(s.events, object.(*corev1.Pod).Name+" "+reason+": "+fmt.Sprintf(format, args...))
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	name := path[len(path)-1]
	switch {
	case r.Method == http.MethodPost && name == "eviction":
		s.evict(w, r, path[len(path)-2])
	case name == "pods":
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		for _, p := range s.pods {
			if p.Spec.NodeName == "" {
				list.Items = append(list.Items, *p)
			}
		}
		answer(list)
	case len(path) > 2 && path[len(path)-2] == "pods" && s.pods[name] != nil:
		answer(s.pods[name])
	case name == "worker":
		answer(s.node)
	case name == "resourceclaims":
		list := resourceapi.ResourceClaimList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimList"}}
		for _, c := range s.claims {
			list.Items = append(list.Items, *c)
		}
		answer(list)
	case name == "deviceclasses":
		answer(classes())
	case name == "resourceslices":
		answer(slice())
	default:
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, http.StatusNotFound)
	}
}

func (s *server) evict(w http.ResponseWriter, r *http.Request, pod string) {
	var e policyv1.Eviction
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil || e.DeleteOptions.Preconditions == nil || *e.DeleteOptions.Preconditions.UID != s.pods[pod].UID {
		s.t.Errorf("eviction %+v: %v", e, err)
	}
	switch {
	case s.budget[pod]:
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","message":"the budget","code":429}`, http.StatusTooManyRequests)
		return
	case len(e.DeleteOptions.DryRun) > 0:
		s.dry++
	default:
		s.evicted = append(s.evicted, pod)
		s.pods[pod].DeletionTimestamp = &metav1.Time{Time: begin.Add(30 * time.Second)}
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
}

// gone ends a pod, as the kubelet and the controller of claims do.
func (s *server) gone(pod string) {
	delete(s.pods, pod)
	delete(s.claims, pod)
}

// priorities are those of the classes.
var priorities = map[string]int{"latency": 10, "standard": 0, "batch": -10, "idle": -100}

func classes() resourceapi.DeviceClassList {
	out := resourceapi.DeviceClassList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClassList"}}
	for name, priority := range priorities {
		c := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.xsched.dev"`}}}
		c.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: parameters(priority)}}
		out.Items = append(out.Items, c)
	}
	return out
}

func parameters(priority int) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver: cluster.Driver, Parameters: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"apiVersion":"gpu.xsched.dev/v1alpha1","kind":"GpuParameters","priority":%d}`, priority)},
	}}
}

func slice() resourceapi.ResourceSliceList {
	capacity := func(all, usual, step int64) resourceapi.DeviceCapacity {
		return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(all, resource.BinarySI), RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: resource.NewQuantity(usual, resource.BinarySI), ValidRange: &resourceapi.CapacityRequestPolicyRange{Step: resource.NewQuantity(step, resource.BinarySI)},
		}}
	}
	node := "worker"
	s := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: cluster.Driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 2}}}
	for _, name := range []string{"gpu-1", "gpu-2", "divided"} {
		d := resourceapi.Device{Name: name, Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"share": capacity(100, 0, 1), "memory": capacity(80<<30, 5<<30, 1<<20), "tenants": capacity(1, 1, 1),
		}}
		if name == "divided" {
			d.Taints = []resourceapi.DeviceTaint{{Key: cluster.Driver + "/partitioned", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}
		s.Spec.Devices = append(s.Spec.Devices, d)
	}
	old := s.DeepCopy()
	old.Spec.Pool.Generation, old.Spec.Devices[0].Name = 1, "gone"
	return resourceapi.ResourceSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSliceList"}, Items: []resourceapi.ResourceSlice{s, *old}}
}

// begin is when pods have waited long enough.
var begin = time.Unix(1_000_000, 0)

// add adds a pod with a claim of its own. A GPU is where it runs; empty: it waits for one since a minute.
func (s *server) add(name, class, gpu string, share, gib, podPriority int) *corev1.Pod {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name + "-claim")}}
	amounts := map[resourceapi.QualifiedName]resource.Quantity{"share": *resource.NewQuantity(int64(share), resource.DecimalSI), "memory": *resource.NewQuantity(int64(gib)<<30, resource.BinarySI)}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Capacity: &resourceapi.CapacityRequirements{Requests: maps.Clone(amounts)}}}}
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name)}}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", Controller: new(true)}}
	p.Spec.Priority, p.Spec.SchedulerName = new(int32(podPriority)), corev1.DefaultSchedulerName
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
	if gpu == "" {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "0/1 nodes are available: 1 cannot allocate all claims.", LastTransitionTime: metav1.Time{Time: begin.Add(-time.Minute)},
		}}
	} else {
		p.Spec.NodeName = "worker"
		amounts["tenants"] = *resource.NewQuantity(1, resource.DecimalSI)
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: cluster.Driver, Pool: "worker", Device: gpu, ConsumedCapacity: amounts}},
			Config:  []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: parameters(priorities[class])}},
		}}
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: p.UID}}
	}
	s.pods[name], s.claims[name] = p, claim
	return p
}

func start(t *testing.T) (*server, *Service) {
	t.Helper()
	s := &server{t: t, pods: map[string]*corev1.Pod{}, claims: map[string]*resourceapi.ResourceClaim{}, budget: map[string]bool{}}
	s.node = corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "worker", Labels: map[string]string{"zone": "a"}}}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: h.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return s, New(Options{After: 30 * time.Second, Wait: time.Minute, Most: 2, Log: slog.New(slog.DiscardHandler)}, client, s)
}

func (s *server) pass(service *Service, after time.Duration, want ...string) {
	s.t.Helper()
	s.evicted = nil
	if err := service.pass(s.t.Context(), begin.Add(after)); err != nil {
		s.t.Error(err)
	}
	if slices.Sort(s.evicted); !slices.Equal(s.evicted, want) {
		s.t.Errorf("evicted %v, want %v", s.evicted, want)
	}
}

// TestChoice: the fewest best-effort pods make room, of the lowest priority, and only where that helps.
func TestChoice(t *testing.T) {
	for name, c := range map[string]struct {
		setup func(s *server)
		want  []string
	}{
		"one of two suffices": {func(s *server) {
			s.add("a", "batch", "gpu-1", 50, 10, 0)
			s.add("b", "idle", "gpu-1", 50, 10, 0)
			s.add("c", "latency", "gpu-2", 90, 10, 0)
		}, []string{"b"}},
		"the smaller number": {func(s *server) {
			s.add("a", "idle", "gpu-1", 20, 10, 0)
			s.add("b", "idle", "gpu-1", 20, 10, 0)
			s.add("c", "latency", "gpu-1", 50, 10, 0)
			s.add("d", "batch", "gpu-2", 90, 10, 0)
		}, []string{"d"}},
		"memory": {func(s *server) {
			s.add("a", "idle", "gpu-1", 0, 60, 0)
			s.add("b", "idle", "gpu-1", 0, 2, 0)
			s.add("c", "latency", "gpu-2", 0, 70, 0)
		}, []string{"a"}},
		"two": {func(s *server) {
			for i, name := range []string{"a", "b", "c", "d"} {
				s.add(name, "batch", fmt.Sprintf("gpu-%d", i/2+1), 40, 10, 0)
			}
			s.add("e", "latency", "gpu-2", 20, 10, 0)
			s.add("f", "latency", "gpu-1", 20, 10, 0)
		}, []string{"a"}},
		"none in vain": {func(s *server) {
			s.add("a", "idle", "gpu-1", 10, 10, 0)
			s.add("b", "batch", "gpu-1", 50, 10, 0)
			s.add("c", "latency", "gpu-1", 30, 10, 0)
			s.add("d", "latency", "gpu-2", 90, 10, 0)
		}, []string{"b"}},
		"room elsewhere": {func(s *server) { s.add("a", "batch", "gpu-1", 100, 10, 0) }, nil},
		"only pods that are not best effort": {func(s *server) {
			s.add("a", "latency", "gpu-1", 90, 10, 0)
			s.add("b", "standard", "gpu-2", 90, 10, 0)
		}, nil},
		"too many": {func(s *server) {
			for i := range 20 {
				s.add(fmt.Sprint(i), "batch", fmt.Sprintf("gpu-%d", i%2+1), 10, 1, 0)
			}
		}, nil},
		"a node that takes no pods": {func(s *server) {
			s.add("a", "batch", "gpu-1", 90, 10, 0)
			s.add("b", "batch", "gpu-2", 90, 10, 0)
			s.node.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, service := start(t)
			c.setup(s)
			s.add("high", "latency", "", 40, 20, 1000)
			s.pass(service, 0, c.want...)
		})
	}
}

// TestWaiting: pods count that claims keep from a node for long enough, and that need what this package understands.
func TestWaiting(t *testing.T) {
	for name, change := range map[string]func(p *corev1.Pod, r *resourceapi.ResourceClaim){
		"": func(*corev1.Pod, *resourceapi.ResourceClaim) {},
		"the right zone": func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.NodeSelector = map[string]string{"zone": "a"}
		},
		"another zone": func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.NodeSelector = map[string]string{"zone": "b"}
		},
		"not long enough": func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Status.Conditions[0].LastTransitionTime.Time = begin
		},
		"for CPU":           func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Status.Conditions[0].Message = "Insufficient cpu" },
		"another scheduler": func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Spec.SchedulerName = "volcano" },
		"never preempts":    func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Spec.PreemptionPolicy = new(corev1.PreemptNever) },
		"no PriorityClass":  func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Spec.Priority = new(int32) },
		"anti-affinity": func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}
		},
		"a claim to come": func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.ResourceClaims[0].ResourceClaimName = new("x")
		},
		"ends": func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.DeletionTimestamp = &metav1.Time{Time: begin} },
		"of batch": func(_ *corev1.Pod, r *resourceapi.ResourceClaim) {
			r.Spec.Devices.Requests[0].Exactly.DeviceClassName = "batch"
		},
		"of another class": func(_ *corev1.Pod, r *resourceapi.ResourceClaim) {
			r.Spec.Devices.Requests[0].Exactly.DeviceClassName = "other"
		},
		"lowered by itself": func(_ *corev1.Pod, r *resourceapi.ResourceClaim) {
			r.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: parameters(-10)}}
		},
		"two GPUs": func(_ *corev1.Pod, r *resourceapi.ResourceClaim) { r.Spec.Devices.Requests[0].Exactly.Count = 2 },
		"selectors": func(_ *corev1.Pod, r *resourceapi.ResourceClaim) {
			r.Spec.Devices.Requests[0].Exactly.Selectors = make([]resourceapi.DeviceSelector, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, service := start(t)
			s.add("a", "batch", "gpu-1", 90, 10, 0)
			s.add("b", "latency", "gpu-2", 90, 10, 0)
			pod := s.add("high", "latency", "", 40, 20, 1000)
			change(pod, s.claims["high"])
			want := []string{}
			if name == "" || name == "the right zone" {
				want = append(want, "a")
			}
			s.pass(service, 0, want...)
		})
	}
}

// TestPace: one waiting pod is served at a time. The next one waits until the first one runs or had its time, and
// nothing is evicted for a pod more than a few times.
func TestPace(t *testing.T) {
	s, service := start(t)
	s.add("a", "batch", "gpu-1", 90, 10, 0)
	s.add("b", "batch", "gpu-2", 90, 10, 0)
	s.add("later", "latency", "", 40, 20, 900)
	s.add("first", "latency", "", 40, 20, 1000)
	s.pass(service, 0, "a")
	if want := []string{
		"a EvictedForGpu: evicted from gpu-1: pod ml/first waits for the GPU with a higher priority",
		"first GpuEviction: pod ml/a is evicted from gpu-1 of node worker",
	}; !slices.Equal(s.events, want) {
		t.Errorf("events %q, want %q", s.events, want)
	}
	s.pass(service, 10*time.Second)
	s.gone("a")
	s.add("taken", "latency", "gpu-1", 90, 10, 0) // by a pod that came in between
	s.pass(service, 20*time.Second)
	delete(s.pods, "first")
	s.pass(service, 30*time.Second, "b")
	for i := range tries + 2 {
		s.gone("b")
		s.add("b", "batch", "gpu-2", 90, 10, 0) // it is back at once
		if at := time.Duration(i+2) * time.Minute; i < tries-1 {
			s.pass(service, at, "b")
		} else {
			s.pass(service, at)
		}
	}
}

// TestSpared: pods with a budget, without a controller and of a DaemonSet stay, and no pod is evicted if another one
// that would have to go stays.
func TestSpared(t *testing.T) {
	for name, spare := range map[string]func(s *server, p *corev1.Pod){
		"budget":        func(s *server, p *corev1.Pod) { s.budget[p.Name] = true },
		"no controller": func(_ *server, p *corev1.Pod) { p.OwnerReferences = nil },
		"daemon set":    func(_ *server, p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" },
		"important":     func(_ *server, p *corev1.Pod) { p.Spec.Priority = new(int32(1000)) },
		"never ends":    func(_ *server, p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: begin.Add(-2 * endLimit)} },
	} {
		t.Run(name, func(t *testing.T) {
			s, service := start(t)
			s.add("a", "idle", "gpu-1", 45, 10, 0)
			spare(s, s.add("b", "idle", "gpu-1", 45, 10, 0))
			s.add("c", "batch", "gpu-2", 45, 10, 0)
			s.add("d", "batch", "gpu-2", 45, 10, 0)
			s.add("high", "latency", "", 100, 20, 1000)
			s.pass(service, 0, "c", "d")
		})
	}
	s, service := start(t)
	s.add("a", "batch", "gpu-1", 90, 10, 0).DeletionTimestamp = &metav1.Time{Time: begin}
	s.add("b", "batch", "gpu-2", 90, 10, 0)
	s.add("high", "latency", "", 40, 20, 1000)
	s.pass(service, 0)
	s.gone("a")
	s.pass(service, time.Second)
}
