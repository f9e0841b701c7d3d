// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// grants are the grants of all sources. A change makes a new value.
type grants struct {
	number  uint64 // increases with every change
	sources map[string][]control.Grant
	// pods has an entry for each container with grants of its own, and one without a container for each
	// pod.
	pods map[identity.Pod]podGrant
	// past names pods whose grants have ended: events and the history outlive them.
	past pastPods
	// unsure: a change failed, and programs that joined meanwhile may have its terms. The next change sets
	// the terms of all programs in pods.
	unsure bool
}

// podGrant is what all grants together say about a process.
type podGrant struct {
	namespace, pod, container, class string
	hints                            *grant // nil: the grants only name the pod
}

// grant is one grant with its hints.
type grant struct {
	control.Grant
	hints model.HintChange
}

// newGrants indexes grants that were checked.
func newGrants(number uint64, sources map[string][]control.Grant) *grants {
	g := &grants{number: number, sources: sources, pods: map[identity.Pod]podGrant{}}
	all := map[identity.Pod][]*control.Grant{}
	for _, source := range slices.Sorted(maps.Keys(sources)) {
		for i := range sources[source] {
			one := &sources[source][i]
			of := identity.Pod{UID: identity.PodUID(one.PodUID), Container: one.ContainerID}
			all[of] = append(all[of], one)
			g.pods[of] = podGrant{namespace: one.Namespace, pod: one.Pod}
			g.pods[of.Whole()] = g.pods[of] // its other containers are in the same pod
		}
	}
	for of, out := range g.pods {
		if of.Container != "" {
			out.join(all[of])
		}
		out.join(all[of.Whole()])
		g.pods[of] = out
	}
	return g
}

// join adds grants to what more specific ones have left open. Several of them count as the lowest of
// each hint, so that nobody gains by ambiguity.
func (p *podGrant) join(all []*control.Grant) {
	var joined *control.Grant
	class := ""
	for _, one := range all {
		class = cmp.Or(class, one.Class)
		if one.ContainerID != "" {
			p.container = cmp.Or(p.container, one.Container)
		}
		switch hints, _ := one.Hints(); {
		case hints.Empty(): // it only names the pod
		case joined == nil:
			joined = one
		default:
			lowest := control.Strictest(*joined, *one)
			joined = &lowest
		}
	}
	if p.hints == nil && joined != nil {
		hints, _ := joined.Hints()
		p.hints, p.class = &grant{*joined, hints}, cmp.Or(joined.Class, p.class)
	}
	p.class = cmp.Or(p.class, class)
}

// of returns what is granted to a process. Grants of its container go before those of its pod.
func (g *grants) of(who *loop.Identity) podGrant {
	if who.Program == nil || who.Program.Pod.UID == "" {
		return podGrant{}
	}
	if p, ok := g.pods[who.Program.Pod]; ok {
		return p
	}
	return g.pods[who.Program.Pod.Whole()]
}

// same reports whether two grants give a process the same terms.
func (p *podGrant) same(other *podGrant) bool {
	if p.hints == nil || other.hints == nil {
		return p.hints == other.hints
	}
	return p.hints.hints == other.hints.hints && p.namespace == other.namespace && p.hints.Pool == other.hints.Pool &&
		slices.Equal(p.hints.Devices, other.hints.Devices)
}

func (g *grant) priority() int32 {
	if g.Priority == nil {
		return int32(model.PriorityDefault)
	}
	return *g.Priority
}

// apply adds what is granted to the terms of a process. It goes before the rules of the configuration.
func (p *podGrant) apply(t *loop.Terms) {
	if p.hints == nil {
		return
	}
	hints := p.hints.hints
	var limited model.HintChange
	if p.hints.Priority != nil {
		top := model.Priority(*p.hints.Priority)
		t.Grant.Ceiling = &top
		limited.Set("priority", model.HintValue{Number: int64(top)})
	}
	t.Hint.Merge(&limited)
	if p.hints.Utilization != nil {
		t.Grant.Share, t.Grant.Pool = *p.hints.Utilization, p.namespace+"/"+cmp.Or(p.hints.Pool, p.hints.PodUID)
		limited.Set("utilization", model.HintValue{Number: int64(t.Grant.Share)})
	}
	for _, name := range p.hints.Devices {
		if id, err := model.ParseDeviceID(name); err == nil { // was checked
			t.Grant.Devices = append(t.Grant.Devices, id)
		}
	}
	rest := hints.Without(&model.HintChange{}, &limited)
	t.Grant.Pinned.Pin(&rest)
	if p.hints.Group != "" {
		// Pods of one priority: in a gang of several, the lower ones would run with the higher ones.
		t.Grant.Group = p.namespace + "/" + p.hints.Group
		t.Grant.Owner = fmt.Sprintf("pods/%s@%d", p.namespace, p.hints.priority())
	}
}

// without returns the part of a change that the grant does not decide: the limits of the user do. What
// the grant decides is within it.
func (p *podGrant) without(change *model.HintChange) model.HintChange {
	var within model.HintChange
	if p.hints != nil && p.hints.Priority != nil {
		if top, said := change.Top(); said && top <= model.Priority(*p.hints.Priority) {
			for _, f := range model.HintFields() {
				if f.Priority && change.Has(f.Name) {
					within.Set(f.Name, model.HintValue{})
				}
			}
		}
	}
	if p.hints != nil && p.hints.Utilization != nil && change.Has("utilization") {
		var h model.Hint
		if change.Apply(&h); h.Utilization <= *p.hints.Utilization {
			within.Set("utilization", model.HintValue{})
		}
	}
	return change.Without(&model.HintChange{}, &within)
}

// limits reports whether the grant has limits of its own.
func (p *podGrant) limits() bool {
	return p.hints != nil && (p.hints.Priority != nil || p.hints.Utilization != nil)
}

// refusal is the error about a hint beyond the grant.
func (p *podGrant) refusal(pid int) error {
	return control.Errorf(control.ErrNotAllowed, "use a lower value, or ask for another device class or priority class",
		"the grant of pod %s/%s limits this hint of process %d (%s)", p.namespace, p.pod, pid, hintsText(&p.hints.Grant))
}

// name returns "namespace/pod/container"; empty: not in a known pod.
func (p *podGrant) name() string { return control.PodName(p.namespace, p.pod, p.container) }
