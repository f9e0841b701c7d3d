// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/kube/cluster"
	"xsched/internal/kube/params"
)

// amounts are those of consumable capacities: share and memory.
type amounts map[resourceapi.QualifiedName]int64

// exceeds reports whether an amount is larger than that of another.
func (a amounts) exceeds(other amounts) bool {
	for name, n := range a {
		if n > other[name] {
			return true
		}
	}
	return false
}

// gpu is a device with the claims that have a part of it.
type gpu struct {
	node, name string
	capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
	free       amounts
	holders    []*holder
}

// holder is a claim with a part of a GPU.
type holder struct {
	uid      types.UID
	claim    string // namespace/name
	priority int32
	uses     amounts
	pods     []types.NamespacedName
}

// tenants is a capacity that grows while pods wait: the node plugin divides claims over its GPUs with it.
const tenants = "tenants"

// inventory returns the GPUs without taints. Capacities that are oversubscribed have a free amount below 0.
func inventory(slices []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim) map[string]*gpu {
	newest := map[string]int64{}
	for i := range slices {
		p := &slices[i].Spec.Pool
		newest[p.Name] = max(newest[p.Name], p.Generation)
	}
	out := map[string]*gpu{}
	for i := range slices {
		s := &slices[i].Spec
		if s.Driver != cluster.Driver || s.NodeName == nil || s.Pool.Generation < newest[s.Pool.Name] {
			continue
		}
		for j := range s.Devices {
			d := &s.Devices[j]
			if len(d.Taints) > 0 {
				continue
			}
			g := &gpu{node: *s.NodeName, name: d.Name, capacity: maps.Clone(d.Capacity), free: amounts{}}
			delete(g.capacity, tenants)
			for name, c := range g.capacity {
				g.free[name] = c.Value.Value()
			}
			out[s.Pool.Name+"/"+d.Name] = g
		}
	}
	for i := range claims {
		hold(out, &claims[i])
	}
	return out
}

// hold adds a claim to the GPUs that it has a part of.
func hold(gpus map[string]*gpu, claim *resourceapi.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	devices := &claim.Status.Allocation.Devices
	for i := range devices.Results {
		r := &devices.Results[i]
		g := gpus[r.Pool+"/"+r.Device]
		if r.Driver != cluster.Driver || g == nil {
			continue
		}
		h := &holder{uid: claim.UID, claim: claim.Namespace + "/" + claim.Name, uses: amounts{}}
		for name := range g.capacity {
			q := r.ConsumedCapacity[name]
			h.uses[name] = q.Value()
			g.free[name] -= h.uses[name]
		}
		p, err := params.Of(cluster.Driver, devices.Config, r.Request)
		for _, user := range claim.Status.ReservedFor {
			if user.APIGroup != "" || user.Resource != "pods" {
				err = errNotPods
			}
			h.pods = append(h.pods, types.NamespacedName{Namespace: claim.Namespace, Name: user.Name})
		}
		if h.priority = p.Priority; err == nil && len(h.pods) > 0 {
			g.holders = append(g.holders, h)
		}
	}
}

// want is what a pod waits for: a part of one GPU.
type want struct {
	priority int32
	requests amounts
}

// on returns the amounts that a claim consumes of a GPU.
func (w *want) on(g *gpu) amounts {
	out := amounts{}
	for name, c := range g.capacity {
		n, asked := w.requests[name]
		if p := c.RequestPolicy; p != nil {
			if !asked && p.Default != nil {
				n = p.Default.Value()
			}
			if p.ValidRange != nil && p.ValidRange.Step != nil && p.ValidRange.Step.Value() > 0 {
				step := p.ValidRange.Step.Value()
				n = (n + step - 1) / step * step
			}
		}
		out[name] = n
	}
	return out
}

// wanted returns what a claim that is not allocated wants; ok is false for one that needs the scheduler's own
// judgement: selectors, constraints, several GPUs or several ways.
func wanted(claim *resourceapi.ResourceClaim, classes map[string]*resourceapi.DeviceClass) (w want, ok bool) {
	spec := &claim.Spec.Devices
	if len(spec.Requests) != 1 || len(spec.Constraints) > 0 || spec.Requests[0].Exactly == nil {
		return w, false
	}
	r := spec.Requests[0].Exactly
	class := classes[r.DeviceClassName]
	if class == nil || len(r.Selectors) > 0 || r.Count > 1 || r.AllocationMode == resourceapi.DeviceAllocationModeAll {
		return w, false
	}
	for _, s := range class.Spec.Selectors {
		if s.CEL == nil || strings.Join(strings.Fields(s.CEL.Expression), " ") != `device.driver == "`+cluster.Driver+`"` {
			return w, false
		}
	}
	var configs []resourceapi.DeviceAllocationConfiguration
	for _, c := range class.Spec.Config {
		configs = append(configs, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: c.DeviceConfiguration})
	}
	for _, c := range spec.Config {
		configs = append(configs, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim, Requests: c.Requests, DeviceConfiguration: c.DeviceConfiguration})
	}
	p, err := params.Of(cluster.Driver, configs, spec.Requests[0].Name)
	w = want{priority: p.Priority, requests: amounts{}}
	if r.Capacity != nil {
		for name, q := range r.Capacity.Requests {
			w.requests[resourceapi.QualifiedName(strings.TrimPrefix(string(name), cluster.Driver+"/"))] = q.Value()
		}
	}
	return w, err == nil && len(class.Spec.Selectors) > 0
}

// plan is the claims whose pods make room on a GPU.
type plan struct {
	gpu     *gpu
	victims []*holder
}

func (p *plan) pods() (n int) {
	for _, v := range p.victims {
		n += len(v.pods)
	}
	return n
}

// choose returns the GPU where the fewest pods of best-effort claims make room, at most this many; nil: there is
// none, or a GPU has room already.
func choose(w *want, gpus map[string]*gpu, most int, usable func(*gpu) bool, protected func(*holder) bool) *plan {
	var best *plan
	for _, id := range slices.Sorted(maps.Keys(gpus)) {
		g := gpus[id]
		if !usable(g) {
			continue
		}
		needs := w.on(g)
		if !needs.exceeds(g.free) {
			return nil
		}
		p := g.makeRoom(needs, func(h *holder) bool {
			return h.priority < min(w.priority, bestEffort) && !protected(h)
		})
		if p != nil && p.pods() <= most && (best == nil || p.pods() < best.pods()) {
			best = p
		}
	}
	return best
}

// bestEffort is the lowest priority that is not best effort.
const bestEffort = 0

// makeRoom adds the claims with the lowest priority until the amounts fit, and leaves out those that were not
// needed; nil: they never fit.
func (g *gpu) makeRoom(needs amounts, evictable func(*holder) bool) *plan {
	all := slices.DeleteFunc(slices.Clone(g.holders), func(h *holder) bool { return !evictable(h) })
	slices.SortStableFunc(all, func(a, b *holder) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), strings.Compare(a.claim, b.claim))
	})
	free := maps.Clone(g.free)
	var victims []*holder
	for _, h := range all {
		if !needs.exceeds(free) {
			break
		}
		victims = append(victims, h)
		for name, n := range h.uses {
			free[name] += n
		}
	}
	if needs.exceeds(free) {
		return nil
	}
	for i, h := range slices.Backward(victims) {
		without := maps.Clone(free)
		for name, n := range h.uses {
			without[name] -= n
		}
		if !needs.exceeds(without) {
			free, victims = without, slices.Delete(victims, i, i+1)
		}
	}
	return &plan{g, victims}
}

// fits reports whether a pod may run on a node, as far as its selector and tolerations say.
func fits(pod *corev1.Pod, node *corev1.Node) bool {
	for name, value := range pod.Spec.NodeSelector {
		if node.Labels[name] != value {
			return false
		}
	}
	return !node.Spec.Unschedulable && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && !slices.ContainsFunc(pod.Spec.Tolerations, func(o corev1.Toleration) bool { return o.ToleratesTaint(quiet, &t, false) })
	})
}
