// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"strings"
	"testing"

	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
)

const testPodUID = "3fd4bb8e-2a0c-4b47-9d0e-5e7a1c3f9b21"

var testContainers = []string{strings.Repeat("1", 64), strings.Repeat("2", 64), strings.Repeat("3", 64)}

func inPod(container string) *loop.Identity {
	return &loop.Identity{Program: &identity.Program{Pod: identity.Pod{UID: testPodUID, Container: container}}}
}

// TestGrantsOfPod: grants of one container or of one pod count as the lowest of each hint, and those of the
// container first.
func TestGrantsOfPod(t *testing.T) {
	grant := func(id, container string, priority, share, level int) control.Grant {
		g := control.Grant{ID: id, Namespace: "ml", Pod: "serve-0", PodUID: testPodUID, ContainerID: container}
		if container != "" {
			g.Container = id
		}
		if priority != 0 {
			g.Priority, g.Class = new(int32(priority)), "class-"+id
		}
		if share != 0 {
			g.Utilization = &share
		}
		if level != 0 {
			g.Level = &level
		}
		return g
	}
	one, two, three := testContainers[0], testContainers[1], testContainers[2]
	g := newGrants(1, map[string][]control.Grant{
		"dra": {grant("a", "", 10, 40, 2), grant("b", "", 10, 20, 3), grant("c", "", 15, 60, 3)},
		"nri": {grant("main", one, 0, 0, 0), grant("d", two, -5, 80, 0), grant("e", two, 5, 30, 0)},
		"zzz": {grant("name", "", 0, 0, 0)},
	})
	for container, want := range map[string]string{
		"":    "ml/serve-0 class-a class-a priority=10 level=3 utilization=20",
		one:   "ml/serve-0/main class-a class-a priority=10 level=3 utilization=20",
		two:   "ml/serve-0/d class-d class-d priority=-5 utilization=30",
		three: "ml/serve-0 class-a class-a priority=10 level=3 utilization=20",
	} {
		pod := g.of(inPod(container))
		if got := pod.name() + " " + pod.class + " " + hintsText(&pod.hints.Grant); got != want {
			t.Errorf("container %.3s: %s, want %s", container, got, want)
		}
	}
	g = newGrants(2, map[string][]control.Grant{"nri": {grant("d", two, -5, 80, 0)}})
	if pod := g.of(inPod(one)); pod.name() != "ml/serve-0" || pod.class != "" || pod.hints != nil {
		t.Errorf("another container of a known pod: %+v", pod)
	}
	if pod := g.of(&loop.Identity{Program: &identity.Program{Pod: identity.Pod{UID: "other"}}}); pod != (podGrant{}) {
		t.Errorf("another pod: %+v", pod)
	}
}

// TestWithinGrant: a grant decides about its own hints only. The limits of the user decide the others.
func TestWithinGrant(t *testing.T) {
	priority := podGrant{hints: &grant{Grant: control.Grant{Priority: new(int32(10))}}}
	both := podGrant{hints: &grant{Grant: control.Grant{Priority: new(int32(10)), Utilization: new(40)}}}
	for _, test := range []struct {
		pod             podGrant
		priority, share int
		want            string
	}{
		{podGrant{}, 5, 30, "priority utilization"},
		{priority, 5, 30, "utilization"},
		{priority, 11, 30, "priority utilization"},
		{both, 10, 40, ""},
		{both, 11, 40, "priority"},
		{both, 5, 41, "utilization"},
		{both, -100, 0, ""}, // back to the share of the grant
	} {
		var change model.HintChange
		change.Set("priority", model.HintValue{Number: int64(test.priority)})
		change.Set("utilization", model.HintValue{Number: int64(test.share)})
		rest := test.pod.without(&change)
		var left []string
		for _, name := range []string{"priority", "utilization"} {
			if rest.Has(name) {
				left = append(left, name)
			}
		}
		if got := strings.Join(left, " "); got != test.want {
			t.Errorf("priority %d, share %d: the user's limits decide %q, want %q", test.priority, test.share, got, test.want)
		}
	}
}

// TestChangedTerms: a change of one pod costs the engine's thread nothing for others.
func TestChangedTerms(t *testing.T) {
	d := &terms{}
	d.configured.Store(&configured{})
	named := control.Grant{ID: "a", Namespace: "ml", Pod: "serve-0", PodUID: testPodUID}
	with, other := named, named
	with.Priority = new(int32(5))
	other.PodUID, other.Priority = staticUID, new(int32(5))
	clients := []loop.Identity{*inPod(testContainers[0]), {}, {Program: &identity.Program{Pod: identity.Pod{UID: staticUID}}}}
	for i := range clients {
		clients[i].ID = model.SessionID(i + 1)
	}
	set := func(all ...control.Grant) *grants { return newGrants(1, map[string][]control.Grant{"dra": all}) }
	for name, test := range map[string]struct {
		old, now *grants
		want     int
	}{
		"nothing":       {set(with, other), set(with, other), 0},
		"one pod":       {set(other), set(with, other), 1},
		"a name":        {set(other), set(named, other), 0},
		"after a name":  {set(named), set(with), 1},
		"the end":       {set(with, other), set(), 2},
		"after a fault": {&grants{pods: set(with, other).pods, unsure: true}, set(with, other), 2},
	} {
		d.grants.Store(test.now)
		if got := d.changed(test.old, test.now, clients); len(got) != test.want {
			t.Errorf("%s: terms of %d clients change, want %d", name, len(got), test.want)
		}
	}
}

var staticUID = strings.Repeat("9c", 16)

// TestPools: the programs of one pool have its share together: those of a pod, or those of all pods of a claim.
func TestPools(t *testing.T) {
	of := func(namespace, pool, uid string, share int) control.Grant {
		return control.Grant{ID: pool + uid, Namespace: namespace, Pod: "serve-0", PodUID: uid, Pool: pool, Utilization: &share}
	}
	other := strings.Replace(testPodUID, "3", "4", 1)
	terms := func(all ...control.Grant) (t loop.Terms) {
		for i := range all {
			if err := all[i].Check(); err != nil {
				panic(err)
			}
		}
		pod := newGrants(1, map[string][]control.Grant{"dra": all}).of(inPod(""))
		pod.apply(&t)
		return t
	}
	pool := func(all ...control.Grant) string { return terms(all...).Grant.Pool }
	first := pool(of("ml", "", testPodUID, 40))
	if first == "" || first == pool(of("ml", "claim", testPodUID, 40)) || pool(of("ml", "claim", testPodUID, 40)) == pool(of("web", "claim", testPodUID, 40)) {
		t.Errorf("pool %q of a pod", first)
	}
	if got := terms(of("ml", "a", testPodUID, 40), of("ml", "b", testPodUID, 20), of("ml", "c", other, 10)).Grant; got.Share != 20 || got.Pool != "ml/b" {
		t.Errorf("two claims: %+v", got)
	}
	a, b := podGrant{hints: &grant{Grant: control.Grant{Pool: "a"}}}, podGrant{hints: &grant{Grant: control.Grant{Pool: "b"}}}
	if a.same(&b) {
		t.Error("a change of the pool does not count")
	}
}
