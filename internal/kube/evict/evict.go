// SPDX-License-Identifier: Apache-2.0

// Package evict makes room for pods with a claim of higher priority: it evicts pods of best-effort claims
// if no GPU has the share or the memory that a waiting pod asks for. Kubernetes' scheduler does not preempt
// pods for claims.
//
// It is no scheduler: it handles pods that wait for a part of one GPU, serves one of them at a time, and
// evicts only pods that a controller makes again, by the Eviction API, which honours PodDisruptionBudgets.
package evict

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"xsched/internal/kube/cluster"
)

const (
	// tries is how often pods are evicted for one waiting pod.
	tries = 3
	// plans bounds the plans of a pass for a pod: each one that may not be carried out spares a claim.
	plans = 16
	// spared is how long a claim is left out whose pods can't be evicted.
	spared = 5 * time.Minute
	// endLimit is how long a pod may take to end after its grace period.
	endLimit = time.Minute
	// passLimit bounds the requests of one pass.
	passLimit = time.Minute
)

// Reasons of events.
const (
	reasonEvicted = "EvictedForGpu"
	reasonRoom    = "GpuEviction"
)

var (
	errNotPods = errors.New("the claim is reserved for an object that is no pod")
	quiet      = klog.Background()
)

// Options of a Service.
type Options struct {
	Every time.Duration // between two looks for waiting pods
	After time.Duration // a pod waits this long before pods are evicted for it
	Wait  time.Duration // for the waiting pod to start, before anything else is evicted
	Most  int           // pods that are evicted for one pod at once
	Log   *slog.Logger
}

// Events writes events.
type Events interface {
	Eventf(object runtime.Object, kind, reason, format string, args ...any)
}

// Service evicts pods. It is for one goroutine.
type Service struct {
	o      Options
	client kubernetes.Interface
	events Events

	served types.UID // the pod that was served last
	until  time.Time // it gets this time to start
	times  map[types.UID]int
	spare  map[types.UID]time.Time // claims that are left out until then
	logged string                  // the last error
}

// New returns a service.
func New(o Options, client kubernetes.Interface, events Events) *Service {
	return &Service{o: o, client: client, events: events, times: map[types.UID]int{}, spare: map[types.UID]time.Time{}}
}

// Run looks for waiting pods until the context ends.
func (s *Service) Run(ctx context.Context) {
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
	for {
		err := s.pass(ctx, time.Now())
		if text := fmt.Sprint(err); text != s.logged && ctx.Err() == nil {
			if s.logged = text; err != nil {
				s.o.Log.Warn("waiting pods not served; trying again", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// pass serves one waiting pod at most.
func (s *Service) pass(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, passLimit)
	defer cancel()
	waiting, err := s.waiting(ctx, now)
	if err != nil {
		return err
	}
	maps.DeleteFunc(s.spare, func(_ types.UID, until time.Time) bool { return now.After(until) })
	maps.DeleteFunc(s.times, func(pod types.UID, _ int) bool {
		return !slices.ContainsFunc(waiting, func(p corev1.Pod) bool { return p.UID == pod })
	})
	if len(waiting) == 0 {
		return nil
	}
	if now.Before(s.until) && slices.ContainsFunc(waiting, func(p corev1.Pod) bool { return p.UID == s.served }) {
		return nil // what was evicted for it is still ending
	}
	world, err := s.read(ctx)
	if err != nil {
		return err
	}
	for i := range waiting {
		if s.times[waiting[i].UID] >= tries {
			continue
		}
		if done, err := s.serve(ctx, world, &waiting[i], now); err != nil || done {
			return err
		}
	}
	return nil
}

// unplaced selects the pods without a node. The API server has an index of it.
const unplaced = "spec.nodeName=,status.phase=" + string(corev1.PodPending)

// waiting returns the pods that found no GPU for a while, the most important first.
func (s *Service) waiting(ctx context.Context, now time.Time) ([]corev1.Pod, error) {
	list, err := s.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: unplaced, ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("look for waiting pods: %w", err)
	}
	out := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !waits(&p, now.Add(-s.o.After)) })
	slices.SortStableFunc(out, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(podPriority(&b), podPriority(&a)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	return out, nil
}

// waits reports whether claims have kept a pod from a node since a time, and nothing that only the scheduler can
// judge does.
func waits(pod *corev1.Pod, since time.Time) bool {
	spec := &pod.Spec
	if pod.DeletionTimestamp != nil || spec.SchedulerName != corev1.DefaultSchedulerName || len(spec.ResourceClaims) == 0 || len(spec.TopologySpreadConstraints) > 0 ||
		spec.PreemptionPolicy != nil && *spec.PreemptionPolicy == corev1.PreemptNever {
		return false
	}
	if a := spec.Affinity; a != nil && (a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil || a.PodAffinity != nil || a.PodAntiAffinity != nil) {
		return false
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable &&
			strings.Contains(c.Message, "cannot allocate all claims") && !c.LastTransitionTime.After(since)
	})
}

// podPriority is the value of a pod's PriorityClass.
func podPriority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// world is what the API server says about GPUs and claims.
type world struct {
	gpus    map[string]*gpu
	claims  map[string]*resourceapi.ResourceClaim // by namespace and name
	classes map[string]*resourceapi.DeviceClass
}

func (s *Service) read(ctx context.Context) (*world, error) {
	cached := metav1.ListOptions{ResourceVersion: "0"}
	claims, err := s.client.ResourceV1().ResourceClaims("").List(ctx, cached)
	if err != nil {
		return nil, fmt.Errorf("read claims: %w", err)
	}
	classes, err := s.client.ResourceV1().DeviceClasses().List(ctx, cached)
	if err != nil {
		return nil, fmt.Errorf("read device classes: %w", err)
	}
	cached.FieldSelector = resourceapi.ResourceSliceSelectorDriver + "=" + cluster.Driver
	published, err := s.client.ResourceV1().ResourceSlices().List(ctx, cached)
	if err != nil {
		return nil, fmt.Errorf("read GPUs: %w", err)
	}
	w := &world{inventory(published.Items, claims.Items), map[string]*resourceapi.ResourceClaim{}, map[string]*resourceapi.DeviceClass{}}
	for i := range claims.Items {
		w.claims[claims.Items[i].Namespace+"/"+claims.Items[i].Name] = &claims.Items[i]
	}
	for i := range classes.Items {
		w.classes[classes.Items[i].Name] = &classes.Items[i]
	}
	return w, nil
}

// want returns what a pod waits for: one claim, and no other that has no GPU yet.
func (w *world) want(pod *corev1.Pod) (out want, ok bool) {
	for i := range pod.Spec.ResourceClaims {
		c := &pod.Spec.ResourceClaims[i]
		name := c.ResourceClaimName
		for j := range pod.Status.ResourceClaimStatuses {
			if s := &pod.Status.ResourceClaimStatuses[j]; s.Name == c.Name && s.ResourceClaimName != nil {
				name = s.ResourceClaimName
			}
		}
		if name == nil || ok {
			return out, false
		}
		claim := w.claims[pod.Namespace+"/"+*name]
		if claim == nil || claim.Status.Allocation != nil {
			return out, false
		}
		if out, ok = wanted(claim, w.classes); !ok {
			return out, false
		}
	}
	return out, ok
}

// serve evicts pods for one that waits; done: it has, or room is being made.
func (s *Service) serve(ctx context.Context, w *world, pod *corev1.Pod, now time.Time) (done bool, err error) {
	asked, ok := w.want(pod)
	if !ok {
		return false, nil
	}
	nodes := map[string]bool{}
	usable := func(g *gpu) bool {
		good, known := nodes[g.node]
		if !known {
			node, err := s.client.CoreV1().Nodes().Get(ctx, g.node, metav1.GetOptions{ResourceVersion: "0"})
			good = err == nil && fits(pod, node)
			nodes[g.node] = good
		}
		return good
	}
	protected := func(h *holder) bool { return now.Before(s.spare[h.uid]) }
	for range plans {
		p := choose(&asked, w.gpus, s.o.Most, usable, protected)
		if p == nil {
			return false, nil
		}
		victims, ending, err := s.victims(ctx, pod, p, now)
		switch {
		case err != nil:
			return false, err
		case ending:
			return true, nil
		case victims != nil:
			return true, s.evict(ctx, pod, p, victims, now)
		}
	}
	return false, nil
}

// victims returns the pods of a plan, if all of them may be evicted; ending: some of them end already. Claims of
// other pods are left out of the next plans.
func (s *Service) victims(ctx context.Context, pod *corev1.Pod, p *plan, now time.Time) (out []*corev1.Pod, ending bool, err error) {
	for _, h := range p.victims {
		for _, name := range h.pods {
			victim, err := s.client.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err) || err == nil && victim.DeletionTimestamp != nil && now.Before(victim.DeletionTimestamp.Add(endLimit)):
				return nil, true, nil // its part of the GPU is about to be free
			case err != nil:
				return nil, false, fmt.Errorf("read pod %s: %w", name, err)
			}
			err = errNotReplaced
			if victim.DeletionTimestamp == nil && replaced(victim) && podPriority(victim) < podPriority(pod) {
				err = s.request(ctx, victim, true)
			}
			if err != nil {
				s.spare[h.uid] = now.Add(spared)
				s.o.Log.Info("pod is not evicted", "pod", name.String(), "for", pod.Namespace+"/"+pod.Name, "err", err)
				return nil, false, nil
			}
			out = append(out, victim)
		}
	}
	return out, false, nil
}

var errNotReplaced = errors.New("no controller makes it again, its PriorityClass is not lower, or it does not end")

// replaced reports whether a controller makes a pod again, elsewhere if need be.
func replaced(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind != "DaemonSet" && owner.Kind != "Node"
}

// request asks for the eviction of a pod, or whether it would be permitted.
func (s *Service) request(ctx context.Context, pod *corev1.Pod, try bool) error {
	e := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	}
	if try {
		e.DeleteOptions.DryRun = []string{metav1.DryRunAll}
	}
	return s.client.CoreV1().Pods(pod.Namespace).EvictV1(ctx, e)
}

// evict evicts the pods of a plan. A refusal ends it: the next pass makes another plan.
func (s *Service) evict(ctx context.Context, pod *corev1.Pod, p *plan, victims []*corev1.Pod, now time.Time) error {
	s.served, s.until = pod.UID, now.Add(s.o.Wait)
	s.times[pod.UID]++
	s.o.Log.Info("evicting pods", "pods", len(victims), "for", pod.Namespace+"/"+pod.Name, "node", p.gpu.node, "gpu", p.gpu.name)
	for _, v := range victims {
		if err := s.request(ctx, v, false); err != nil {
			return fmt.Errorf("evict pod %s/%s: %w", v.Namespace, v.Name, err)
		}
		s.events.Eventf(v, corev1.EventTypeWarning, reasonEvicted, "evicted from %s: pod %s/%s waits for the GPU with a higher priority", p.gpu.name, pod.Namespace, pod.Name)
		s.events.Eventf(pod, corev1.EventTypeNormal, reasonRoom, "pod %s/%s is evicted from %s of node %s", v.Namespace, v.Name, p.gpu.name, p.gpu.node)
	}
	return nil
}
